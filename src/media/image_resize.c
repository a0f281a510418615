/* image_resize.c -- resizing as the pipelines of diffusers have it done: Pillow's LANCZOS and BICUBIC over bytes, horizontally,
 * then vertically (Pillow 13 turns the order where that is cheaper), in fixed point with bytes between the passes, so that
 * pixels come out equal. */
#include "media/image.h"

#include "base/size.h"

#include <math.h>

enum { PRECISION = 32 - 8 - 2 }; /* bits behind the point of a weight: Pillow's */

static double sinc(double x)
{
    if (x == 0) return 1;
    x *= 3.14159265358979323846;
    return sin(x) / x;
}

static double lanczos(double x)
{
    return x > -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

typedef struct shape {
    double lobes; /* it is zero from there on */
    double (*at)(double x);
} shape;

static const shape shapes[] = {[OQ_LANCZOS] = {3, lanczos}, [OQ_BICUBIC] = {2, bicubic}};

typedef struct window { /* weights of one output: inputs [first, first + n) */
    int64_t first, n;
    int32_t *weight;
} window;

typedef struct windows {
    window *at;       /* [out] */
    int32_t *weights; /* behind them */
} windows;

static void fill_window(const shape *kernel, window *w, int64_t i, int64_t in, double scale, double *scratch)
{
    const double stretch = scale > 1 ? scale : 1, support = kernel->lobes * stretch,
                 centre = ((double)i + 0.5) * scale;
    int64_t first = (int64_t)(centre - support + 0.5), end = (int64_t)(centre + support + 0.5);
    double sum = 0;
    if (first < 0) first = 0;
    if (end > in) end = in;
    for (int64_t k = first; k < end; k++)
        sum += scratch[k - first] = kernel->at(((double)k - centre + 0.5) / stretch);
    w->first = first;
    w->n = end - first;
    for (int64_t k = 0; k < w->n; k++) {
        const double x = scratch[k] / (sum != 0 ? sum : 1) * (double)(1 << PRECISION);
        w->weight[k] = (int32_t)(x < 0 ? x - 0.5 : x + 0.5);
    }
}

static oq_status new_windows(oq_env *env, const shape *kernel, int64_t in, int64_t out, windows *w)
{
    const double scale = (double)in / (double)out, stretch = scale > 1 ? scale : 1;
    const double widest = ceil(kernel->lobes * stretch) * 2 + 1; /* no integer yet: sizes come from files */
    const int64_t most = widest < 1e15 ? (int64_t)widest : INT64_MAX;
    double *scratch = NULL;
    size_t n;
    *w = (windows){0};
    if (!oq_size_mul((size_t)out, (size_t)most, &n) || most == INT64_MAX)
        return oq_fail(env, OQ_E_NOMEM, "resizing: no memory");
    oq_status st = oq_new(env, (size_t)out, sizeof *w->at, "resizing", &w->at);
    if (st == OQ_OK) st = oq_new(env, n, sizeof *w->weights, "resizing", &w->weights);
    if (st == OQ_OK) st = oq_new(env, (size_t)most, sizeof *scratch, "resizing", &scratch);
    for (int64_t i = 0; st == OQ_OK && i < out; i++) {
        w->at[i].weight = w->weights + i * most;
        fill_window(kernel, &w->at[i], i, in, scale, scratch);
    }
    oq_free(env, scratch);
    return st;
}

static void free_windows(oq_env *env, windows *w)
{
    oq_free(env, w->weights);
    oq_free(env, w->at);
}

/* `step` bytes lie between an input and the next along the axis. */
static uint8_t weigh(const window *w, const uint8_t *line, int64_t step)
{
    int64_t sum = (int64_t)1 << (PRECISION - 1);
    for (int64_t k = 0; k < w->n; k++) sum += (int64_t)w->weight[k] * line[(w->first + k) * step];
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void resize_rows(const oq_image *image, const windows *w, oq_image *out)
{
    for (int64_t y = 0; y < out->height; y++)
        for (int64_t x = 0; x < out->width; x++)
            for (int64_t c = 0; c < 3; c++)
                out->pixels[(y * out->width + x) * 3 + c] =
                    weigh(&w->at[x], image->pixels + y * image->width * 3 + c, 3);
}

static void resize_columns(const oq_image *image, const windows *w, oq_image *out)
{
    for (int64_t y = 0; y < out->height; y++)
        for (int64_t i = 0; i < out->width * 3; i++)
            out->pixels[y * out->width * 3 + i] = weigh(&w->at[y], image->pixels + i, image->width * 3);
}

oq_status oq_image_resize(oq_env *env, const oq_image *image, oq_image_filter filter, int64_t width,
                          int64_t height, oq_image *out)
{
    oq_image wide = {0};
    windows columns = {0}, rows = {0};
    *out = (oq_image){0};
    oq_status st = new_windows(env, &shapes[filter], image->width, width, &columns);
    if (st == OQ_OK) st = new_windows(env, &shapes[filter], image->height, height, &rows);
    if (st == OQ_OK) st = oq_image_new(env, width, image->height, &wide);
    if (st == OQ_OK) st = oq_image_new(env, width, height, out);
    if (st == OQ_OK) {
        resize_rows(image, &columns, &wide);
        resize_columns(&wide, &rows, out);
    }
    oq_image_deinit(env, &wide);
    free_windows(env, &rows);
    free_windows(env, &columns);
    return st;
}
