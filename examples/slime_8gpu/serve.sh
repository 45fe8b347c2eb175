#!/usr/bin/env bash
# Two SGLang engines and a router that keeps a session on the engine that has its prefix. Ctrl-C ends all of them.
# Run it in slime's image, whose SGLang is the one that slime's weight updates were written for.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/env.sh"

pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT

urls=()
for i in "${!ENGINE_PORTS[@]}"; do
   CUDA_VISIBLE_DEVICES="${ENGINE_GPUS[$i]}" python3 -m sglang.launch_server \
      --model-path "${MODEL}" \
      --trust-remote-code \
      --host 127.0.0.1 \
      --port "${ENGINE_PORTS[$i]}" \
      --tp-size 2 \
      --context-length 50000 \
      --mem-fraction-static 0.8 \
      --enable-metrics &
   pids+=("$!")
   urls+=("http://127.0.0.1:${ENGINE_PORTS[$i]}")
done

for url in "${urls[@]}"; do
   until curl -sf "${url}/health" >/dev/null; do sleep 2; kill -0 "${pids[@]}"; done
done

# consistent_hashing goes by the header X-SMG-Routing-Key, which Polynya's proxy sets to the session.
python3 -m sglang_router.launch_router \
   --worker-urls "${urls[@]}" \
   --policy consistent_hashing \
   --host 127.0.0.1 \
   --port "${ROUTER_PORT}" &
pids+=("$!")
echo "serving: ${urls[*]}, router http://127.0.0.1:${ROUTER_PORT}"
wait -n
