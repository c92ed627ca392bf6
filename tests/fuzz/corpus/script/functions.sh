#!/bin/bash
get_args() { local tp=$1; echo "--tensor-model-parallel-size $tp"; }
TP=4
ARGS=$(get_args $TP)
case "$TP" in 1) SP="";; 2|4) SP="--sequence-parallel";; esac
for i in 0 1 2; do echo $i; done
LAYERS=`expr 8 \* 4`
cat <<< "hello"
python3 <<'PY'
print("x")
PY
trap 'kill 0' SIGINT
mpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG=INFO --map-by slot \
python pretrain_gpt.py --num-layers ${LAYERS} --hidden-size=4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 16 --vocab-size 32000 --bf16 $ARGS $SP &
wait
