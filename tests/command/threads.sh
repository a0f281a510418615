#!/bin/sh
# threads.sh -- the same bits on one thread and on several, for every kind of product. CI also runs it under the thread
# sanitizer.
. "$(dirname "$0")/lib.sh"
for method in none fp8 int8; do
    for n in 1 2 5; do
        expect 0 '' generate -m "$model" -p 'a large red ring' -W 64 -H 64 --steps 1 -q -s 1 --quantization $method \
            --threads $n -o ${method}_$n.png
    done
    check "$method: 2 threads" cmp ${method}_1.png ${method}_2.png
    check "$method: 5 threads" cmp ${method}_1.png ${method}_5.png
done
finish
