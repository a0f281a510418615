/* prompt_ids.c -- template, tokenizer, limit. */
#include "pipelines/prompt_ids.h"

#include <stdio.h>
#include <string.h>

static oq_status byte_ids(oq_env *env, oq_arena *arena, const char *text, size_t n, int32_t **ids,
                          size_t *count)
{
    (void)env;
    OQ_TRY(oq_arena_new(arena, n, sizeof **ids, "token ids", ids));
    for (size_t i = 0; i < n; i++) (*ids)[i] = (unsigned char)text[i];
    *count = n;
    return OQ_OK;
}

static oq_status encode(oq_env *env, oq_arena *arena, const oq_tokenizer *tokenizer, const char *text,
                        size_t n, int32_t **ids, size_t *count)
{
    if (!tokenizer) return byte_ids(env, arena, text, n, ids, count);
    int32_t *found = NULL;
    OQ_TRY(oq_tokenizer_encode(env, tokenizer, text, n, true, &found, count));
    const oq_status st = oq_arena_new(arena, *count ? *count : 1, sizeof **ids, "token ids", ids);
    if (st == OQ_OK && *count) memcpy(*ids, found, *count * sizeof *found);
    oq_free(env, found);
    return st;
}

static oq_status check_marks_between(oq_env *env, const oq_tokenizer *tokenizer, const char *text,
                                     const char *open, const char *close)
{
    for (const char *at = text, *end; (at = strstr(at, open)) && (end = strstr(at, close));
         at = end + strlen(close)) {
        char mark[64];
        const int n = (int)(end + strlen(close) - at);
        snprintf(mark, sizeof mark, "%.*s", n, at);
        if (oq_tokenizer_find(tokenizer, mark) < 0)
            return oq_fail(env, OQ_E_FORMAT,
                           "the tokenizer has no token '%s', which the template around prompts needs", mark);
    }
    return OQ_OK;
}

static oq_status check_marks(oq_env *env, const oq_tokenizer *tokenizer, const char *text)
{
    OQ_TRY(check_marks_between(env, tokenizer, text, "<|", "|>"));
    return check_marks_between(env, tokenizer, text, "[", "]");
}

oq_status oq_prompt_ids_check(oq_env *env, const oq_tokenizer *tokenizer, const char *before,
                              const char *after)
{
    OQ_TRY(check_marks(env, tokenizer, before));
    return check_marks(env, tokenizer, after);
}

static oq_status pad(oq_env *env, oq_arena *arena, const oq_prompt_ids *p, int32_t **ids, size_t n)
{
    int32_t *padded = NULL;
    if (p->pad_id < 0 || p->pad_id >= p->vocab_size)
        return oq_fail(env, OQ_E_FORMAT,
                       "the pad token's id %d is beyond the text encoder's vocabulary of %lld", p->pad_id,
                       (long long)p->vocab_size);
    OQ_TRY(oq_arena_new(arena, (size_t)p->max_tokens, sizeof *padded, "token ids", &padded));
    const size_t pads = (size_t)p->max_tokens - n, from = p->pad_before ? pads : 0;
    memcpy(padded + from, *ids, n * sizeof *padded);
    for (size_t i = 0; i < pads; i++) padded[p->pad_before ? i : n + i] = p->pad_id;
    *ids = padded;
    return OQ_OK;
}

static oq_status put_first(oq_arena *arena, const oq_prompt_ids *p, int32_t **ids, size_t *n)
{
    const int32_t first = p->first ? oq_prompt_ids_find(p->tokenizer, p->first, -1) : -1;
    int32_t *longer = NULL;
    if (first < 0 || (*n && **ids == first)) return OQ_OK;
    OQ_TRY(oq_arena_new(arena, *n + 1, sizeof *longer, "token ids", &longer));
    *longer = first;
    memcpy(longer + 1, *ids, *n * sizeof *longer);
    *ids = longer;
    ++*n;
    return OQ_OK;
}

oq_status oq_prompt_ids_make(oq_env *env, oq_arena *arena, const oq_prompt_ids *p, const char *prompt,
                             const char *what, int32_t **ids, int64_t *count)
{
    const char *text = oq_arena_printf(arena, "%s%s%s", p->before, prompt, p->after);
    size_t n = 0;
    if (!text) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for %zu bytes", what, strlen(prompt));
    OQ_TRY(encode(env, arena, p->tokenizer, text, strlen(text), ids, &n));
    OQ_TRY(put_first(arena, p, ids, &n));
    if (n == 0 && !p->pad) return oq_fail(env, OQ_E_ARG, "%s has no tokens", what);
    if ((int64_t)n > p->max_tokens) {
        if (p->warn)
            oq_log(env, OQ_LOG_WARN, "%s has %zu tokens; those after the first %lld are dropped", what, n,
                   (long long)p->max_tokens);
        const size_t last = (size_t)(p->keep_last < p->max_tokens ? p->keep_last : p->max_tokens);
        memmove(*ids + p->max_tokens - (int64_t)last, *ids + n - last, last * sizeof **ids);
        n = (size_t)p->max_tokens;
    }
    for (size_t i = 0; i < n; i++)
        if ((*ids)[i] < 0 || (*ids)[i] >= p->vocab_size)
            return oq_fail(env, OQ_E_FORMAT,
                           "%s: token id %d is beyond the text encoder's vocabulary of %lld", what,
                           (int)(*ids)[i], (long long)p->vocab_size);
    *count = (int64_t)n;
    return p->pad ? pad(env, arena, p, ids, n) : OQ_OK;
}

int32_t oq_prompt_ids_find(const oq_tokenizer *tokenizer, const char *piece, int32_t fallback)
{
    const int32_t id = tokenizer ? oq_tokenizer_find(tokenizer, piece) : -1;
    return id < 0 ? fallback : id;
}
