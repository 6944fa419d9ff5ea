/* Sentence boundaries against NLTK's. */
#include "core/jread.h"
#include "ruler/punkt.h"
#include "tests/test.h"

int main(void)
{
    struct punkt *p = NULL;
    CHECK_OK(punkt_load(&p, "ruler/data/punkt_english", e));
    const char *path = test_data("ruler/oracle/punkt_vectors.json");
    if (!p || !path) {
        punkt_free(p);
        return test_failed ? test_end() : test_skip("NLTK's vectors (ruler/oracle/punkt_vectors.json) are not here");
    }
    struct jdoc d = {0};
    CHECK_OK(jdoc_load(&d, path, 1 << 22, e));
    const json_t *cases = json_object_get(d.root, "cases");
    CHECK(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *want = json_object_get(c, "sents"), *t = json_object_get(c, "text");
        const char *text = json_string_value(t);
        struct span *s = NULL;
        size_t n = 0;
        if (!text || !json_is_array(want)) {
            printf("case %zu is of another kind: not checked\n", i);
            continue;
        }
        CHECK_OK(punkt_split(p, text, json_string_length(t), &s, &n, e));
        CHECK_EQ_I(n, json_array_size(want));
        for (size_t k = 0; k < n && k < json_array_size(want); k++) {
            char got[4096];
            snprintf(got, sizeof got, "%.*s", (int)(s[k].to - s[k].from), text + s[k].from);
            CHECK_STR(got, json_string_value(json_array_get(want, k)));
        }
        free(s);
    }
    printf("%zu texts\n", json_array_size(cases));
    jdoc_free(&d);
    punkt_free(p);
    return test_end();
}
