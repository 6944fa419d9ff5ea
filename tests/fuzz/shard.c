/* Any three files as a token shard: refused, or every row can be read within its bounds. Input: u16 length of shard.json, u16 length of
 * ids.i32, then the three files. */
#include "model/data.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct shard s;
    struct err e = ERR_INIT;
    if (n < 4)
        return 0;
    size_t json = p[0] + 256u * p[1], ids = p[2] + 256u * p[3], left = n - 4;
    json = json < left ? json : left;
    left -= json;
    ids = ids < left ? ids : left;
    fuzz_put("shard.json", p + 4, json);
    fuzz_put("ids.i32", p + 4 + json, ids);
    fuzz_put("mask.u8", p + 4 + json + ids, left - ids);
    if (shard_open(&s, fuzz_dir, json % 2 == 1, &e) != 0) {
        if (e.code == E_OK || !e.msg[0])
            abort();
        return 0;
    }
    int64_t tokens = 0, answers = 0;
    for (int64_t r = 0; r < s.rows; r++) {
        if (s.len[r] < 2 || s.len[r] > s.seq)
            abort();
        tokens += s.len[r];
        for (int64_t t = 0; t < s.seq; t++) {
            int32_t id = s.ids[r * s.seq + t];
            uint8_t m = s.mask[r * s.seq + t];
            if (id < 0 || id >= s.vocab || (t < s.len[r]) != ((m & TOK_PRESENT) != 0))
                abort();
            answers += (m & TOK_ANSWER) != 0;
        }
    }
    if (tokens != s.tokens || answers != s.answer_tokens)
        abort();
    shard_close(&s);
    return 0;
}
