/* dashlab model tokenize */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ids.h"
#include "core/fs.h"
#include "core/jread.h"
#include "core/jwrite.h"
#include "model/chat.h"
#include "model/tok_open.h"

struct text_opts {
    const char *text, *file, *messages, *chat_template;
    bool stdin_text, no_special, plain, decode, skip_special, generation_prompt, json;
};

/* [{"role": .., "content": ..}, ..], or an object with "messages". */
static int render_messages(const struct tok *t, const struct text_opts *o, struct str *out, struct err *e)
{
    struct str s = STR_INIT;
    struct jdoc d = {0};
    struct chat_msg *v = NULL;
    enum chat_kind kind = chat_detect(tok_chat_template(t));
    int rc = text_read(o->messages, &s, e);
    if (rc == 0 && o->chat_template && !chat_by_name(o->chat_template, &kind))
        rc = ERR(e, E_USAGE, "unknown chat template '%s' (chatml, smollm2, qwen2, qwen25, qwen3, llama3, llama31, llama32)",
                 o->chat_template);
    if (rc == 0)
        rc = jdoc_parse(&d, o->messages, str_c(&s), s.len, e);
    const json_t *a = rc == 0 && json_is_object(d.root) ? json_object_get(d.root, "messages") : d.root;
    if (rc == 0 && !json_is_array(a))
        rc = ERR(e, E_INPUT, "%s: an array of messages is expected", o->messages);
    size_t n = rc == 0 ? json_array_size(a) : 0;
    if (rc == 0 && !(v = calloc(n + 1, sizeof *v)))
        rc = err_nomem(e, n * sizeof *v, "messages");
    for (size_t i = 0; i < n && rc == 0; i++) {
        char where[32];
        snprintf(where, sizeof where, "[%zu]", i);
        const json_t *m = json_array_get(a, i);
        if (!json_is_object(m))
            rc = ERR(e, E_INPUT, "%s: message %zu is not an object", o->messages, i);
        else
            rc = jget_str(&d, m, where, "role", &v[i].role, e) || jget_str(&d, m, where, "content", &v[i].content, e) ? -1 : 0;
    }
    if (rc == 0)
        rc = chat_render(kind, v, n, o->generation_prompt, out, e);
    free(v);
    jdoc_free(&d);
    str_free(&s);
    return rc;
}

static void json_ids(struct jw *w, const struct tok_ids *ids)
{
    jw_key(w, "ids");
    jw_arr(w);
    for (size_t i = 0; i < ids->n; i++)
        jw_i64(w, ids->v[i]);
    jw_end_arr(w);
}

static int decode(const struct tok *t, const struct text_opts *o, struct str *out, struct err *e)
{
    struct tok_ids ids = {0};
    struct str text = STR_INIT;
    const char *path = o->file ? o->file : "-";
    int rc;
    if (o->text) { /* the ids themselves */
        char name[] = "--text";
        rc = ids_parse(name, o->text, &ids, e);
    } else
        rc = ids_read(path, &ids, e);
    if (rc == 0)
        rc = tok_decode(t, ids.v, ids.n, o->skip_special, &text, e);
    if (rc == 0 && o->json) {
        struct jw w;
        jw_init(&w, out, false);
        jw_obj(&w);
        jw_key(&w, "text");
        jw_strn(&w, str_c(&text), text.len);
        jw_end_obj(&w);
        str_putc(out, '\n');
    } else if (rc == 0)
        str_add(out, str_c(&text), text.len); /* the bytes alone: nothing is added to them */
    tok_ids_free(&ids);
    str_free(&text);
    return rc;
}

static int encode(const struct tok *t, const struct text_opts *o, struct str *out, struct err *e)
{
    struct tok_ids ids = {0};
    struct str text = STR_INIT;
    const int32_t *fix;
    int rc = 0;
    bool add = !o->no_special && !o->messages; /* a rendered chat has its own special tokens */
    if (o->messages)
        rc = render_messages(t, o, &text, e);
    else if (o->text)
        str_puts(&text, o->text);
    else
        rc = text_read(o->file ? o->file : "-", &text, e);
    for (size_t i = 0, n = tok_prefix(t, &fix); i < n && add && rc == 0; i++)
        rc = tok_ids_add(&ids, fix[i], e);
    if (rc == 0)
        rc = tok_encode(t, str_c(&text), text.len, !o->plain, &ids, e);
    for (size_t i = 0, n = tok_suffix(t, &fix); i < n && add && rc == 0; i++)
        rc = tok_ids_add(&ids, fix[i], e);
    if (rc == 0 && o->json) {
        struct jw w;
        jw_init(&w, out, false);
        jw_obj(&w);
        if (o->messages) {
            jw_key(&w, "text");
            jw_strn(&w, str_c(&text), text.len);
        }
        json_ids(&w, &ids);
        jw_end_obj(&w);
        str_putc(out, '\n');
    } else if (rc == 0) {
        if (o->messages)
            str_add(out, str_c(&text), text.len);
        for (size_t i = 0; i < ids.n; i++)
            str_printf(out, "%s%d", i ? " " : "", (int)ids.v[i]);
        str_putc(out, '\n');
    }
    tok_ids_free(&ids);
    str_free(&text);
    return rc;
}

int model_tokenize(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    struct text_opts o = {0};
    const char *pos[2], *pretok = NULL;
    const struct opt opts[] = {
        O_STR("text", &o.text, "S", "the text (with --decode: the ids)", "Text"),
        O_STR("file", &o.file, "F", "the text or the ids in a file, - for standard input", "Text"),
        O_STR("messages", &o.messages, "F", "JSON array of {role, content}: render the chat template", "Text"),
        O_FLAG("generation-prompt", &o.generation_prompt, "end the rendering where the assistant begins", "Text"),
        O_STR("chat-template", &o.chat_template, "NAME", "a built-in template in place of the model's", "Text"),
        O_FLAG("no-special", &o.no_special, "add nothing before and after the text (no BOS)", "Text"),
        O_FLAG("plain", &o.plain, "text that spells a special token is plain text", "Text"),
        O_FLAG("decode", &o.decode, "from ids to text", "Text"),
        O_FLAG("skip-special", &o.skip_special, "with --decode: leave special tokens out", "Text"),
        O_STR("pretok", &pretok, "NAME", "split rule of an unknown vocab.json", "Model"),
        COMMON_OPTS(&c),
    };
    const struct cmd_spec spec = {
        .synopsis = "dashlab model tokenize PATH (--text S | --file F | - | --messages F) [OPTIONS]",
        .about = "Text to ids and back. PATH: a model folder, .gguf, tokenizer.json, or a folder with vocab.json and merges.txt.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .min_pos = 1,
        .max_pos = 2};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    bool dash = n_pos == 2 && !strcmp(pos[1], "-");
    if (n_pos == 2 && !dash)
        return ERR(e, E_USAGE, "unexpected argument '%s' (a text is given with --text or --file)", pos[1]);
    if ((o.text != NULL) + (o.file != NULL) + (o.messages != NULL) + dash != 1)
        return ERR(e, E_USAGE, "give one of --text, --file, --messages and -");
    if (o.messages && o.decode)
        return ERR(e, E_USAGE, "--decode and --messages do not go together");
    o.json = c.json;
    struct tok *t;
    struct str out = STR_INIT;
    TRY(tok_open(&t, pos[0], pretok, e));
    int rc = o.decode ? decode(t, &o, &out, e) : encode(t, &o, &out, e);
    if (rc == 0)
        print_str(&out);
    str_free(&out);
    tok_free(t);
    return rc;
}
