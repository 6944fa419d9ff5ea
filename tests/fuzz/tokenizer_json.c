/*
 * Any bytes as tokenizer.json: no crash, little memory. What loads encodes every text to ids inside the vocabulary, as many as counted,
 * twice alike (the second time out of the cache), and loads again to the same identity.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"
#include "model/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void use(const struct tok *t, const char *p, size_t n)
{
    for (int special = 0; special < 2; special++) {
        struct err e = ERR_INIT;
        struct tok_ids a = {0}, b = {0};
        struct str s = STR_INIT;
        int64_t count = -1;
        int rc = tok_encode(t, p, n, special, &a, &e);
        must(rc == 0 || (e.code == E_INPUT && a.n == 0));
        if (rc == 0) {
            must(tok_encode(t, p, n, special, &b, &e) == 0 && tok_count(t, p, n, special, &count, &e) == 0);
            must(a.n == b.n && count == (int64_t)a.n && (a.n == 0 || !memcmp(a.v, b.v, a.n * sizeof *a.v)));
            must(tok_decode(t, a.v, a.n, special, &s, &e) == 0);
        }
        tok_ids_free(&a);
        tok_ids_free(&b);
        str_free(&s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char text[] = "abc ab  12\n\n It's <s> \xc3\xa9\xcc\x81 \xea\xb0\xb8\xe1\x86\xa7 <|im_end|>\t\xe4\xb8\x80 "
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct err e = ERR_INIT;
    struct tok *t = NULL, *u = NULL;
    char *z = malloc(n + 1);
    if (!z)
        return 0;
    memcpy(z, p, n);
    z[n] = 0;
    chat_detect(z);
    if (tok_from_json(&t, "fuzz", z, n, &e) == 0) {
        use(t, text, sizeof text - 1);
        use(t, z, n);
        must(tok_from_json(&u, "fuzz", z, n, &e) == 0 && !strcmp(tok_sha256(t), tok_sha256(u)));
    } else {
        must(e.code == E_INPUT && e.msg[0]);
    }
    tok_free(t);
    tok_free(u);
    free(z);
    return 0;
}
