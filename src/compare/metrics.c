/* metrics.c -- the sums over two pictures are whole numbers and exact; only the last operations round. */
#include "compare/metrics.h"

#include <math.h>
#include <string.h>

const oq_metric_info oq_metric_list[] = {
    {"mse", offsetof(oq_metrics, mse)},
    {"rmse", offsetof(oq_metrics, rmse)},
    {"mae", offsetof(oq_metrics, mae)},
    {"max_abs", offsetof(oq_metrics, max_abs)},
    {"l2", offsetof(oq_metrics, l2)},
    {"relative_l2", offsetof(oq_metrics, relative_l2)},
    {"cosine_similarity", offsetof(oq_metrics, cosine_similarity)},
    {"psnr_db", offsetof(oq_metrics, psnr_db)},
    {NULL, 0},
};

typedef struct sums {
    uint64_t aa, bb, ab, d, dd;
    uint32_t max_d;
} sums;

/* Short enough for 32 bits: 32768 * 255 * 255 < 2^32. */
enum { BLOCK = 32768 };

static void add_block(const uint8_t *a, const uint8_t *b, size_t n, sums *s)
{
    uint32_t aa = 0, bb = 0, ab = 0, d = 0, max_d = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t x = a[i], y = b[i], e = x > y ? x - y : y - x;
        aa += x * x;
        bb += y * y;
        ab += x * y;
        d += e;
        max_d = e > max_d ? e : max_d;
    }
    s->aa += aa;
    s->bb += bb;
    s->ab += ab;
    s->d += d;
    s->dd += (uint64_t)aa + bb - 2 * (uint64_t)ab; /* sum (x - y)^2 */
    if (max_d > s->max_d) s->max_d = max_d;
}

static double cosine(const sums *s)
{
    if (s->aa == 0 || s->bb == 0) return s->aa == s->bb ? 1 : 0;
    const double c = (double)s->ab / sqrt((double)s->aa * (double)s->bb);
    return c > 1 ? 1 : c;
}

void oq_metrics_u8(const uint8_t *a, const uint8_t *b, size_t n, oq_metrics *out)
{
    sums s = {0};
    for (size_t i = 0; i < n; i += BLOCK) add_block(a + i, b + i, n - i < BLOCK ? n - i : BLOCK, &s);
    const double count = n ? (double)n : 1;
    out->mse = (double)s.dd / count;
    out->rmse = sqrt(out->mse);
    out->mae = (double)s.d / count;
    out->max_abs = s.max_d;
    out->l2 = sqrt((double)s.dd);
    out->relative_l2 = s.aa ? out->l2 / sqrt((double)s.aa) : s.dd ? INFINITY : 0;
    out->cosine_similarity = cosine(&s);
    out->psnr_db = s.dd ? 20 * log10(255) - 10 * log10(out->mse) : INFINITY;
}

double oq_metric_value(const oq_metrics *m, const oq_metric_info *info)
{
    double value;
    memcpy(&value, (const char *)m + info->offset, sizeof value);
    return value;
}

oq_json *oq_metrics_to_json(const oq_metrics *m)
{
    oq_json *json = oq_json_new_object();
    for (const oq_metric_info *i = oq_metric_list; i->name; i++)
        oq_json_set(json, i->name, oq_json_new_real(oq_metric_value(m, i)));
    return json;
}
