#!/bin/sh
# Stands for torchrun and pretrain_gpt.py: fake_launcher.sh MODE STEPS FLAGS...: prints what Megatron's training loop
# prints. Steps take 100 ms where more than one virtual stage is asked for, 120 ms otherwise; the first are slower.
mode=$1 steps=$2
shift 2
ms=120
for flag in "$@"; do
  [ "$flag" != --num-virtual-stages-per-pipeline-rank ] || ms=100
done
echo "$*" >"$FAKE_SEEN.flags"
echo "${CUDA_DEVICE_MAX_CONNECTIONS-unset} ${PYTORCH_CUDA_ALLOC_CONF-unset}" >"$FAKE_SEEN.env"
[ "$mode" != ignores ] || echo '  pipeline_model_parallel_size .................... 1'
step=0 first=0
[ "$mode" != resumed ] || first=100
while [ $step -lt "$steps" ]; do
  step=$((step + 1))
  now=$ms
  [ $step -gt 2 ] || now=$((ms * 5))
  if [ $step = 4 ]; then
    case $mode in
      oom)
        echo "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 1 has a total capacity of 139.80 GiB" >&2
        echo "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " >&2
        exit 1
        ;;
      unfused)  # where Transformer Engine finds no fused kernel, scores fill the memory
        echo "[rank1]:   File \"transformer_engine/pytorch/attention/dot_product_attention/backends.py\", line 648, in forward" >&2
        echo "[rank1]:     matmul_result = torch.baddbmm(" >&2
        echo "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB." >&2
        exit 1
        ;;
      assert)
        echo "  File \"megatron/training/arguments.py\", line 1, in validate_args" >&2
        echo "AssertionError: the layout has 7 stages, the pipeline 8" >&2
        exit 1
        ;;
      oomhang)  # one rank dies, the others wait for it
        echo "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB." >&2
        sleep 600
        ;;
      hang)
        sleep 600 &  # a worker that outlives its launcher
        echo $! >"$FAKE_SEEN.worker"
        wait
        ;;
      session)  # as torchrun starts its workers
        setsid sh -c "echo \$\$ >$FAKE_SEEN.worker; sleep 600" &
        wait
        ;;
      hangtrace)
        trap 'echo "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15"; exit 1' TERM
        sleep 600 &
        wait
        ;;
      leaves)
        setsid sleep 600 &
        echo $! >"$FAKE_SEEN.worker"
        ;;
    esac
  fi
  [ "$mode" != silent ] || continue
  [ "$mode" != interval ] || [ $((step % 2)) = 0 ] || continue
  echo " [2026-11-22 04:26:38.630972] iteration $(printf %8d $((first + step)))/$(printf %8d $((first + steps))) | consumed samples: $step | elapsed time per iteration (ms): $now.0 | throughput per GPU (TFLOP/s/GPU): 545.3 | learning rate: 1.0E-05 |"
  for rank in 0 1; do
    echo "[Rank $rank] (after $step iterations) memory (MB) | allocated: 9000.00 | max allocated: 2${rank}480.00 | reserved: 24000.00 | max reserved: 2$((5 + rank))600.00 | total device memory used: 27072.00"
  done
done
[ "$mode" != forever ] || sleep 600
