/* command_list.c -- the index of commands, in the order of the help. */
#include "engine/command.h"

const oq_command *const oq_command_table[] = {
    &oq_command_generate, &oq_command_plan,
    &oq_command_inspect,  &oq_command_compare,
    &oq_command_quantize, &oq_command_dequantize,
    &oq_command_recipe,   &oq_command_serve,
    &oq_command_bench,    &oq_command_tokenize,
    &oq_command_methods,  &oq_command_models,
    &oq_command_devices,  NULL,
};

const oq_command_info *oq_command_at(size_t index)
{
    for (size_t i = 0; oq_command_table[i]; i++)
        if (i == index) return &oq_command_table[i]->info;
    return NULL;
}
