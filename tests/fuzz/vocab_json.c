/*
 * Any bytes as vocab.json: no crash, and what jansson and the rules for ids say of the same bytes. What loads has every token under its id
 * and nothing else; what does not is refused with a message.
 */
#include <stdlib.h>
#include <string.h>

#include "model/tok_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

/* An object of tokens and distinct ids within the limit? */
static bool is_vocabulary(const json_t *root)
{
    json_t *v = (json_t *)(uintptr_t)root;
    bool ok = json_is_object(root);
    struct tok *t = NULL;
    struct err e = ERR_INIT;
    must(tokb_new(&t, "tree", &e) == 0);
    for (void *it = json_object_iter(v); it && ok; it = json_object_iter_next(v, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *id = json_object_iter_value(it);
        ok = json_is_integer(id) && tokb_token(t, json_integer_value(id), key, strlen(key), &e) == 0;
    }
    tok_free(t);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e = ERR_INIT, je = ERR_INIT;
    struct tok *t = NULL;
    struct jdoc d = {0};
    must(tokb_new(&t, "fuzz", &e) == 0);
    bool good = tok_vocab_text(t, "fuzz", (const char *)p, n, &e) == 0;
    must(good || (e.code == E_INPUT && !strncmp(e.msg, "fuzz:", 5)));
    /* jansson overlooks a zero byte behind a number */
    bool want = !(n && memchr(p, 0, n)) && jdoc_parse(&d, "fuzz", (const char *)p, n, &je) == 0 && is_vocabulary(d.root);
    must(good == want);
    if (good) {
        must((size_t)t->n_tokens == json_object_size(d.root));
        for (void *it = json_object_iter(d.root); it; it = json_object_iter_next(d.root, it)) {
            const char *key = json_object_iter_key(it);
            must(tok_find(t, key, strlen(key), TF_VOCAB) == json_integer_value(json_object_iter_value(it)));
        }
    }
    jdoc_free(&d);
    tok_free(t);
    return 0;
}
