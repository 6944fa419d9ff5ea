/* dashlab model: dispatch */
#include "cli/cli.h"

#include "cli/ids.h"

static const struct cmd subs[] = {
    {"info", "architecture, shapes, mixers, parameters, files", model_info},
    {"tensors", "every tensor with shape and hash", model_tensors},
    {"tokenize", "text to ids and back, chat templates", model_tokenize},
    {"logprobs", "log-probability of every token of a text", model_logprobs},
    {"forward", "logits, hidden states and gradients to a file", model_forward},
    {"generate", "greedy continuation", model_generate},
    {"convert", "to a Hugging Face folder", model_convert},
};

int cmd_model(int argc, char **argv, struct err *e)
{
    return cli_sub("model", subs, ARRAY_LEN(subs), argc, argv, e);
}
