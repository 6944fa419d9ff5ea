/* Any bytes as a config.json: refused, or a configuration that passes its checks, has frequencies, and survives writing and reading.
 * Seeds: seeds/config_json. */
#include <stdlib.h>

#include "model/cfg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct mcfg c, back;
    float inv[MCFG_MAX_HEAD_DIM / 2], factor;
    double inv64[MCFG_MAX_HEAD_DIM / 2], factor64;
    if (mcfg_parse(&c, "fuzz", (const char *)data, size, &e) != 0) {
        if (e.code != E_INPUT)
            abort();
        return 0;
    }
    if (mcfg_check(&c, "fuzz", &e) != 0 || mcfg_params(&c) <= 0)
        abort();
    if (c.H) {
        cfg_inv_freq(&c, inv, &factor);
        cfg_inv_freq_f64(&c, inv64, &factor64);
    }
    struct str s = STR_INIT;
    if (mcfg_write_json(&c, "float32", &s, &e) != 0 || mcfg_parse(&back, "written", str_c(&s), s.len, &e) != 0)
        abort();
    /* fla's form gains the `dashlab` object on writing, so equality is asked of plain models and of dashlab's own files */
    if ((c.layout == LAYOUT_HF && mcfg_plain(&c)) || c.dashlab.present) {
        back.dashlab.version = c.dashlab.version;
        if (!mcfg_equal(&c, &back))
            abort();
    }
    mcfg_free(&back);
    mcfg_free(&c);
    str_free(&s);
    return 0;
}
