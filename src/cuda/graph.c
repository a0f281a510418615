/* graph.c -- steps recorded as CUDA graphs. A key that is new just runs, so that modules load and products are tuned outside
 * of a recording; the second time it is recorded, from the third on it is replayed. */
#include "cuda/cuda.h"

enum { SEEN = 1, RECORDED };

static oq_cuda_graph *find(oq_device *d, uint64_t key)
{
    for (int i = 0; i < OQ_CUDA_GRAPHS; i++)
        if (d->graphs[i].state && d->graphs[i].key == key) return &d->graphs[i];
    return NULL;
}

static void forget(oq_cuda_graph *g)
{
    if (g->exec) cudaGraphExecDestroy(g->exec);
    *g = (oq_cuda_graph){0};
}

void oq_cuda_graphs_clear(oq_device *d)
{
    oq_cuda_enter(d);
    for (int i = 0; i < OQ_CUDA_GRAPHS; i++)
        if (d->graphs[i].exec) {
            cudaStreamSynchronize(d->stream); /* a graph that runs must not be destroyed */
            break;
        }
    for (int i = 0; i < OQ_CUDA_GRAPHS; i++) forget(&d->graphs[i]);
}

bool oq_cuda_graph_replay(oq_device *d, uint64_t key)
{
    const oq_cuda_graph *g = find(d, key);
    if (!g || g->state != RECORDED) return false;
    oq_cuda_enter(d);
    oq_cuda_note(d, cudaGraphLaunch(g->exec, d->stream), "recorded step");
    oq_cuda_done(d, "recorded step");
    return true;
}

bool oq_cuda_graph_begin(oq_device *d, uint64_t key)
{
    if (d->check || d->eager) return false; /* every operation is waited for, or launched */
    if (!find(d, key)) {
        oq_cuda_graph *slot = &d->graphs[d->next_graph++ % OQ_CUDA_GRAPHS];
        if (slot->exec) cudaStreamSynchronize(d->stream);
        forget(slot);
        *slot = (oq_cuda_graph){.key = key, .state = SEEN};
        return false;
    }
    oq_cuda_enter(d);
    return cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
}

void oq_cuda_graph_end(oq_device *d, uint64_t key)
{
    cudaGraph_t graph = NULL;
    oq_cuda_graph *g = find(d, key);
    cudaError_t error = cudaStreamEndCapture(d->stream, &graph);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&g->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (error == cudaSuccess) {
        g->state = RECORDED;
        error = cudaGraphLaunch(g->exec, d->stream);
    }
    oq_cuda_note(d, error, "recording of a step");
    oq_cuda_done(d, "recorded step");
}
