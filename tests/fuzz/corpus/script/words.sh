#!/usr/bin/env bash
MODEL_SIZE=${1:-8B}
declare -A LAYERS=([8B]=32 [70B]=80)
declare -A HIDDEN=( ["8B"]=4096 ["70B"]=8192 )
if [[ $MODEL_SIZE == 8B ]]; then
  NUM_LAYERS=${LAYERS[$MODEL_SIZE]}; H=${HIDDEN[8B]}; HEADS=32; FFN=14336
elif [ $MODEL_SIZE = 70B ]; then
  NUM_LAYERS=80; H=8192; HEADS=64; FFN=28672
else
  echo bad; exit 1
fi
read -r -d '' ARGS <<EOF
--num-layers $NUM_LAYERS --hidden-size $H --num-attention-heads $HEADS --ffn-hidden-size $FFN
--seq-length 8192 --max-position-embeddings 8192 --swiglu --group-query-attention --num-query-groups 8
EOF
GPT_ARGS=(
    --micro-batch-size $(( 1 ))   # per GPU
    --global-batch-size $((128 / 2))
    --bf16 # precision
    --vocab-size 128256
)
[ -n "${EXTRA:-}" ] && GPT_ARGS+=($EXTRA)
(( H > 4000 )) && GPT_ARGS+=(--use-distributed-optimizer)
PYTHONPATH=$PWD:${PYTHONPATH:-} OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node=8 \
   ./pretrain_gpt.py ${ARGS} "${GPT_ARGS[@]}" 2>&1 | tee log.txt
