/* model_attention_avx512bf16.c -- attention_amx.c over the model of its tile instructions. */
#define OQ_AMX_MODEL     1
#define oq_attention_amx oq_attention_amx_model
#include "cpu/attention/attention_amx.c"
