#!/bin/sh
# bench.sh -- every section prints rows with the promised keys; nothing about speed is judged here.
. "$(dirname "$0")/lib.sh"
expect 2 "filter 'nope*' matches no kernel" bench --only kernels --filter 'nope*' --seconds 0.001
expect 0 '' bench --only kernels --filter '*ref*' --seconds 0.001 --json -q
says '"op": "linear"'
head -1 out | grep -q '^{.*"kernel".*"ms".*"gflops".*"min".*"max".*"n".*"peer".*}$' && pass || fail 'one object a line' "$(head -1 out)"
expect 0 '' bench -m "$model" --only whole --quantization int8 --seconds 0.001 -q
says 'generate'
says 'int8'
expect 0 '' bench -m "$model" --only layers --quantization int8 --seconds 0.001 --json -q
says '"op": "layer"'
says '"dtype": "int8_channel"'
expect 2 'bench of layers needs a model' bench --only layers
expect 2 'only must be one of kernels,layers,whole' bench --only x
expect 1 'tools/dev/peer is not here' bench -m "$model" --compare --only kernels --filter none
finish
