/* Any bytes as a GGUF file: refused, or every tensor decodes, every array walks, and configuration and tokenizer are good or refused.
 * Seeds: seeds/gguf. */
#include <stdlib.h>

#include "model/cfg.h"
#include "model/tok.h"
#include "model/tok_open.h"

static void walk(const struct gguf *g)
{
    for (size_t i = 0; i < g->n_kv; i++) {
        struct gguf_iter it = gguf_iter(&g->kv[i]), it2 = it, it3 = it;
        struct gguf_str s;
        int64_t v;
        double x;
        uint64_t n = 0;
        while (gguf_next_str(&it, &s))
            n += 1 + s.n;
        while (gguf_next_i64(&it2, &v))
            n++;
        while (gguf_next_f64(&it3, &x))
            n++;
        if (n > 64 * (uint64_t)g->map.len + 64)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct gguf g;
    struct mcfg c;
    float buf[256];
    if (gguf_open_mem(&g, "fuzz", data, size, &e) != 0) {
        if (e.code != E_INPUT)
            abort();
        return 0;
    }
    walk(&g);
    for (size_t i = 0; i < g.n_t; i++) {
        const struct gguf_tensor *t = &g.t[i];
        for (int64_t k = 0; k < t->n && ggml_can_read(t->type); k += 256)
            if (ggml_to_f32(t->type, t->data, k, MIN(256, t->n - k), buf, &e) != 0)
                abort();
    }
    if (mcfg_from_gguf(&c, &g, &e) == 0) {
        if (mcfg_check(&c, "fuzz", &e) != 0)
            abort();
        mcfg_free(&c);
    }
    struct tok *t = NULL;
    struct tok_ids ids = {0};
    e = (struct err)ERR_INIT;
    if (tok_from_gguf(&t, &g, NULL, &e) == 0) {
        if (tok_encode(t, "ab <s> 12", 9, true, &ids, &e) != 0 && e.code != E_INPUT)
            abort();
        tok_ids_free(&ids);
        tok_free(t);
    } else if (e.code != E_INPUT) {
        abort();
    }
    gguf_close(&g);
    return 0;
}
