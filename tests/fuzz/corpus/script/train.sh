#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-2}
WORLD=$(($TP * 4))
MODEL_ARGS=(
  --num-layers 32 # layers
  --hidden-size 4096
  "--seq-length 4096"
)
if [[ "$TP" -gt 1 && -n "$WORLD" ]]; then
  MODEL_ARGS+=(--sequence-parallel)
else
  exit 1
fi
for x in bf16 swiglu; do EXTRA+=" --$x"; done
case $TP in 1) A=1;; 2|4) A=2;; *) A=3;; esac
cat <<EOF > x
anything " ' ( goes
EOF
run() { echo $1; }
run now | tee log 2>&1
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} $EXTRA \
  --num-attention-heads 32 \
  --tensor-model-parallel-size $TP --micro-batch-size $A --vocab-size 32000 "$@"
