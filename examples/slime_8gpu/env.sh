# What all scripts of this recipe share. Change it here, or set it before.
export POLYNYA_HOME="${POLYNYA_HOME:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)}"
export SLIME_HOME="${SLIME_HOME:-/root/slime}"
export MEGATRON_HOME="${MEGATRON_HOME:-/root/Megatron-LM}"
export MODEL="${MODEL:-/root/Qwen3.5-4B}"                      # Hugging Face checkpoint; ${MODEL}_torch_dist is what Megatron loads
export SAVE="${SAVE:-/root/polynya-qwen3.5-4B}"                # checkpoints, and beside each the position in Polynya's log
export POLYNYA_POLICY="${POLYNYA_POLICY:-qwen3.5-4b}"

# Four GPUs train, four serve: two engines of two GPUs each.
export TRAIN_GPUS="${TRAIN_GPUS:-0,1,2,3}"
export ENGINE_GPUS=("4,5" "6,7")
export ENGINE_PORTS=(30001 30002)
export ROUTER_PORT="${ROUTER_PORT:-30000}"
