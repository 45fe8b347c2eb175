#!/usr/bin/env bash
# slime's asynchronous GRPO on trajectories that Polynya captured. `serve.sh` and `polynya up` run already (README.md).
set -euo pipefail
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "${HERE}/env.sh"
: "${POLYNYA_BOOTSTRAP:?Kafka\'s address, as \`polynya up\` printed it}"

source "${SLIME_HOME}/scripts/models/qwen3.5-4B.sh"   # MODEL_ARGS

CKPT_ARGS=(
   --hf-checkpoint "${MODEL}"
   --ref-load "${MODEL}_torch_dist"
   --load "${SAVE}"
   --save "${SAVE}"
   --save-interval 10
)

# Groups come from trajectory.scored; nothing is generated here. 293 tasks / 4 groups a step = 73 steps: one epoch.
ROLLOUT_ARGS=(
   --rollout-function-path examples.slime_8gpu.polynya_rollout.generate_rollout
   --data-source-path examples.slime_8gpu.polynya_rollout.PolynyaSource
   --rollout-batch-size 4
   --n-samples-per-prompt 16
   --global-batch-size 64
   --num-rollout 73
   --rollout-max-context-len 50000
   --rollout-temperature 1.0
   --balance-data
)

# Advantages arrive finished, one for each trace: slime would normalise over the batch where sessions have several traces.
GRPO_ARGS=(
   --advantage-estimator grpo
   --disable-rewards-normalization
   --use-tis
   --use-kl-loss
   --kl-loss-coef 0.001
   --kl-loss-type low_var_kl
   --entropy-coef 0.0
   --eps-clip 0.2
   --eps-clip-high 0.28
)

OPTIMIZER_ARGS=(
   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98
)

PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 1
   --context-parallel-size 2
   --expert-model-parallel-size 1
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 25600
)

# After every step slime sends the weights straight to the engines (NCCL), under the numbers 1, 2, …; Polynya reads the number from
# each reply. On machines that can't form an NCCL group: --update-weight-transport disk --update-weight-disk-dir DIR.
ENGINE_ARGS=(
   --rollout-external-engine-addrs "${ENGINE_PORTS[@]/#/127.0.0.1:}"
   --rollout-num-gpus-per-engine 2
   --update-weights-interval 1
   --update-weight-mode full
   --update-weight-transport nccl
)

MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32
   --attention-softmax-in-fp32
   --attention-backend flash
)

CUDA_VISIBLE_DEVICES="${TRAIN_GPUS}" ray start --head --node-ip-address 127.0.0.1 --num-gpus 4 --disable-usage-stats
trap 'ray stop' EXIT

RUNTIME_ENV="$(cat <<EOF
{"env_vars": {
   "PYTHONPATH": "${MEGATRON_HOME}:${POLYNYA_HOME}",
   "CUDA_DEVICE_MAX_CONNECTIONS": "1",
   "POLYNYA_BOOTSTRAP": "${POLYNYA_BOOTSTRAP}",
   "POLYNYA_TOPIC_PREFIX": "${POLYNYA_TOPIC_PREFIX:-}",
   "POLYNYA_POLICY": "${POLYNYA_POLICY}"
}}
EOF
)"

cd "${SLIME_HOME}"
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="${RUNTIME_ENV}" -- \
   python3 train_async.py \
   --actor-num-nodes 1 \
   --actor-num-gpus-per-node 4 \
   "${MODEL_ARGS[@]}" \
   "${CKPT_ARGS[@]}" \
   "${ROLLOUT_ARGS[@]}" \
   "${GRPO_ARGS[@]}" \
   "${OPTIMIZER_ARGS[@]}" \
   "${PERF_ARGS[@]}" \
   "${ENGINE_ARGS[@]}" \
   "${MISC_ARGS[@]}"
