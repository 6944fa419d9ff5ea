/*
 * Any bytes as a config.json: refused, or a configuration that passes its checks, has frequencies, and survives writing and reading. With zero bytes in it, the
 * input is a folder: config.json, generation_config.json, tokenizer_config.json and chat_template.jinja between them; a part that is empty is no file, but for
 * the first. Seeds: seeds/config_json.
 */
#include <string.h>

#include "model/cfg.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(struct mcfg *c, bool alone)
{
    struct err e = ERR_INIT;
    struct mcfg back;
    float inv[MCFG_MAX_HEAD_DIM / 2], factor;
    double inv64[MCFG_MAX_HEAD_DIM / 2], factor64;
    struct str s = STR_INIT;
    if (mcfg_check(c, "fuzz", &e) != 0 || mcfg_params(c) <= 0)
        abort();
    if (c->H) {
        cfg_inv_freq(c, inv, &factor);
        cfg_inv_freq_f64(c, inv64, &factor64);
    }
    if (mcfg_write_json(c, "float32", &s, &e) != 0 || mcfg_parse(&back, "written", str_c(&s), s.len, &e) != 0)
        abort();
    /* What files beside it add is not in config.json. fla's form gains the `dashlab` object on writing, so equality is asked of plain models and of dashlab's own files */
    if (alone && ((c->layout == LAYOUT_HF && mcfg_plain(c)) || c->dashlab.present)) {
        back.dashlab.version = c->dashlab.version;
        if (!mcfg_equal(c, &back))
            abort();
    }
    mcfg_free(&back);
    mcfg_free(c);
    str_free(&s);
}

static void folder(const uint8_t *p, size_t n)
{
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"};
    struct err e = ERR_INIT;
    struct mcfg c;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const uint8_t *z = n ? memchr(p, 0, n) : NULL;
        size_t len = z && i + 1 < ARRAY_LEN(names) ? (size_t)(z - p) : n;
        fuzz_put(names[i], len || i == 0 ? p : NULL, len);
        p += MIN(len + 1, n);
        n -= MIN(len + 1, n);
    }
    if (mcfg_load(&c, fuzz_dir, &e) == 0)
        use(&c, false);
    else if (e.code != E_INPUT)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct mcfg c;
    if (size && memchr(data, 0, size))
        folder(data, size);
    else if (mcfg_parse(&c, "fuzz", (const char *)data, size, &e) == 0)
        use(&c, true);
    else if (e.code != E_INPUT)
        abort();
    return 0;
}
