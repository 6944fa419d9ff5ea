/* Custom: the user's own layers. */
#include "baselines/selector.h"

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    if (!in->spec || !*in->spec)
        return ERR(e, E_USAGE, "method 'custom' needs --layers SPEC, for example \"full:0,5 window:2\"");
    TRY(layers_parse(in->spec, in->layers, out->kind, e));
    for (int l = 0; in->exclude && l < in->layers; l++)
        if (in->exclude[l] && out->kind[l] != MIX_GDN)
            return ERR(e, E_USAGE, "layer %d is both in --layers and in --exclude", l);
    return 0;
}

const struct selector sel_custom = {.name = "custom", .title = "Custom", .about = "the user's own set (--layers SPEC)", .needs = "nothing",
                                    .cost = "none", .source = "user", .certain = true, .version = 1, .pick = pick};
