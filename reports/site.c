/* The page over a results folder. */
#include "reports/site.h"

#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/fs.h"
#include "core/jread.h"
#include "core/jwrite.h"

enum { MAX_FOLDERS = 512, MAX_FILE = 16 << 20 };
static const char *const scales[] = {"paper", "small", "tiny", "ci"};

void html_escape(struct str *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '&')
            str_puts(out, "&amp;");
        else if (*s == '<')
            str_puts(out, "&lt;");
        else if (*s == '>')
            str_puts(out, "&gt;");
        else if (*s == '"')
            str_puts(out, "&quot;");
        else
            str_putc(out, *s);
    }
}

int site_note(const char *dir, const char *manifest, const char *scale, const char *title, const char *command, const struct site_report *r,
              size_t n, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    char path[1024];
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "manifest", manifest);
    jw_kstr(&w, "scale", scale);
    jw_kstr(&w, "title", title);
    jw_kstr(&w, "command", command);
    jw_key(&w, "reports");
    jw_arr(&w);
    for (size_t i = 0; i < n; i++) {
        jw_obj(&w);
        jw_kstr(&w, "name", r[i].name);
        jw_kstr(&w, "title", r[i].title);
        jw_kstr(&w, "verdict", r[i].verdict);
        jw_end_obj(&w);
    }
    jw_end_arr(&w);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = mkdir_p(dir, e) || jw_ok(&w, "report.json", e) || file_write(path_join(path, dir, "report.json"), str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

struct folder {
    const char *rel, *name, *scale; /* NAME/SCALE */
    struct jdoc doc;
};
struct site {
    struct arena a;
    const char *root;
    struct folder f[MAX_FOLDERS];
    size_t n;
    struct str html, md;
};

static const char *field(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* table2 before table10, tables before the rest as letters have them. */
static int natural(const char *a, const char *b)
{
    size_t x = strcspn(a, "0123456789"), y = strcspn(b, "0123456789");
    if (x == y && !strncmp(a, b, x) && a[x] && b[y]) {
        long i = strtol(a + x, NULL, 10), k = strtol(b + y, NULL, 10);
        if (i != k)
            return i < k ? -1 : 1;
    }
    return strcmp(a, b);
}

static int by_name(const void *x, const void *y)
{
    const struct folder *a = x, *b = y;
    int c = natural(a->name, b->name);
    return c ? c : strcmp(a->scale, b->scale);
}

static int find_folders(struct site *s, struct err *e)
{
    struct names names;
    TRY(dir_list(s->root, &names, e));
    int rc = 0;
    for (size_t i = 0; i < names.n; i++)
        for (size_t k = 0; rc == 0 && k < ARRAY_LEN(scales) && s->n < MAX_FOLDERS; k++) {
            char rel[512], base[1024], path[1024];
            snprintf(rel, sizeof rel, "%.400s/%s", names.v[i], scales[k]);
            path_join(path, path_join(base, s->root, rel), "report.json");
            if (!file_exists(path))
                continue;
            struct folder *f = &s->f[s->n];
            *f = (struct folder){.rel = arena_strdup(&s->a, rel), .name = arena_strdup(&s->a, names.v[i]), .scale = scales[k]};
            rc = jdoc_load(&f->doc, path, MAX_FILE, e);
            s->n += rc == 0;
        }
    names_free(&names);
    TRY(rc);
    TRY(arena_ok(&s->a, "a page", e));
    qsort(s->f, s->n, sizeof *s->f, by_name);
    return 0;
}

static void verdicts(struct site *s)
{
    str_puts(&s->html,
             "<h2>Verdicts</h2>\n<table>\n<tr><th class=\"l\">result</th><th class=\"l\">scale</th><th class=\"l\">verdict</th></tr>\n");
    str_puts(&s->md, "## Verdicts\n\n| result | scale | verdict |\n| --- | --- | --- |\n");
    for (size_t i = 0; i < s->n; i++) {
        const json_t *list = json_object_get(s->f[i].doc.root, "reports");
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *r = json_array_get(list, k);
            str_printf(&s->html, "<tr><td class=\"l\"><a href=\"#%s-%s\">", s->f[i].name, s->f[i].scale);
            html_escape(&s->html, field(r, "name"));
            str_printf(&s->html, "</a></td><td class=\"l\">%s</td><td class=\"l w\">", s->f[i].scale);
            html_escape(&s->html, field(r, "verdict"));
            str_puts(&s->html, "</td></tr>\n");
            str_printf(&s->md, "| [%s](%s/) | %s | %s |\n", field(r, "name"), s->f[i].rel, s->f[i].scale, field(r, "verdict"));
        }
    }
    str_puts(&s->html, "</table>\n");
    str_puts(&s->md, "\n");
}

/* NAME.EXT or NAME-more.EXT belongs to report NAME. */
static bool belongs(const char *file, const char *report, const char *ext)
{
    size_t n = strlen(report), len = strlen(file), x = strlen(ext);
    return len >= n + x && !strncmp(file, report, n) && (file[n] == '.' || file[n] == '-') && !strcmp(file + len - x, ext);
}

static void put_file(struct str *out, const char *dir, const char *file)
{
    char path[1024];
    struct err ignored = ERR_INIT;
    struct str s = STR_INIT;
    if (file_read(path_join(path, dir, file), MAX_FILE, &s, &ignored) == 0)
        str_add(out, str_c(&s), s.len);
    str_free(&s);
}

static void one_report(struct site *s, const struct folder *f, const json_t *r, const char *dir, const struct names *files)
{
    const char *name = field(r, "name");
    for (size_t i = 0; i < files->n; i++) {
        const char *file = files->v[i];
        if (belongs(file, name, ".svg")) {
            str_printf(&s->html, "<figure><img src=\"%s/%s\" alt=\"", f->rel, file);
            html_escape(&s->html, field(r, "title"));
            str_puts(&s->html, ": ");
            html_escape(&s->html, field(r, "verdict"));
            str_printf(&s->html, "\"><figcaption>%.*s: ", (int)strlen(file) - 4, file);
            html_escape(&s->html, field(r, "title"));
            str_printf(&s->html, " (%s scale)</figcaption></figure>\n", f->scale);
            str_printf(&s->md, "![%s: %s](%s/%s)\n\n", field(r, "title"), field(r, "verdict"), f->rel, file);
        } else if (belongs(file, name, ".html")) {
            put_file(&s->html, dir, file);
            char md[300];
            snprintf(md, sizeof md, "%.*s.md", (int)strlen(file) - 5, file);
            put_file(&s->md, dir, md);
            str_puts(&s->md, "\n");
        }
    }
}

/* The runs behind a folder: runs.tsv as a table, folded. */
static void provenance(struct site *s, const struct folder *f, const char *dir, const struct names *files)
{
    char path[1024];
    struct str t = STR_INIT;
    struct err ignored = ERR_INIT;
    str_puts(&s->html, "<details><summary>provenance</summary>\n<p>made by <code>");
    html_escape(&s->html, field(f->doc.root, "command"));
    str_puts(&s->html, "</code>; files:");
    for (size_t i = 0; i < files->n; i++)
        str_printf(&s->html, " <a href=\"%s/%s\">%s</a>", f->rel, files->v[i], files->v[i]);
    str_puts(&s->html, "</p>\n");
    str_printf(&s->md, "made by `%s`; the runs behind it: [runs.tsv](%s/runs.tsv)\n\n", field(f->doc.root, "command"), f->rel);
    if (file_read(path_join(path, dir, "runs.tsv"), MAX_FILE, &t, &ignored) == 0 && t.len) {
        str_puts(&s->html, "<table class=\"p\">\n");
        for (const char *c = str_c(&t); *c;) {
            str_puts(&s->html, "<tr>");
            for (bool more = true; more;) {
                size_t n = strcspn(c, "\t\n");
                char *cell = arena_strndup(&s->a, c, n);
                str_puts(&s->html, "<td class=\"l\">");
                html_escape(&s->html, cell ? cell : "");
                str_puts(&s->html, "</td>");
                c += n;
                more = *c == '\t';
                c += *c != 0;
            }
            str_puts(&s->html, "</tr>\n");
        }
        str_puts(&s->html, "</table>\n");
    }
    str_puts(&s->html, "</details>\n");
    str_free(&t);
}

static int section(struct site *s, const struct folder *f, struct err *e)
{
    char dir[1024];
    struct names files;
    path_join(dir, s->root, f->rel);
    TRY(dir_list(dir, &files, e));
    str_printf(&s->html, "<h2 id=\"%s-%s\">", f->name, f->scale);
    html_escape(&s->html, f->name);
    str_printf(&s->html, " at scale %s: ", f->scale);
    html_escape(&s->html, field(f->doc.root, "title"));
    str_puts(&s->html, "</h2>\n");
    str_printf(&s->md, "## %s at scale %s: %s\n\n", f->name, f->scale, field(f->doc.root, "title"));
    const json_t *list = json_object_get(f->doc.root, "reports");
    for (size_t k = 0; k < json_array_size(list); k++)
        one_report(s, f, json_array_get(list, k), dir, &files);
    provenance(s, f, dir, &files);
    names_free(&files);
    return 0;
}

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, "
    "initial-scale=1\">\n<title>dashlab results</title>\n<style>\n"
    "body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 78em; padding: 0 1em; color: #111; background: #fff }\n"
    "table { border-collapse: collapse; margin: 0.6em 0; font-size: 13px; display: block; overflow-x: auto }\n"
    "th, td { padding: 2px 9px; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap }\nth { border-bottom: 1px solid "
    "#444 }\n"
    ".l { text-align: left }\n.w { white-space: normal }\n.b td { font-style: italic; border-top: 1px solid #888 }\n.n { font-size: 12px; "
    "color: #444 }\n"
    "figure { margin: 1em 0 }\nimg { max-width: 100% }\nh2 { margin-top: 2em }\n.p { font-size: 12px "
    "}\n</style>\n</head>\n<body>\n<h1>dashlab results</h1>\n"
    "<p>The scale stands beside every number. Only scale <em>paper</em> has the publication's setting.</p>\n";

int site_write(const char *results, struct err *e)
{
    struct site *s = calloc(1, sizeof *s);
    char path[1024];
    if (!s)
        return err_nomem(e, sizeof *s, "a page");
    arena_init(&s->a, (size_t)256 << 20);
    s->root = results;
    int rc = find_folders(s, e);
    str_puts(&s->html, head);
    str_puts(&s->md, "# dashlab results\n\nThe scale stands beside every number. Only scale *paper* has the publication's setting.\n\n");
    if (rc == 0)
        verdicts(s);
    for (size_t i = 0; rc == 0 && i < s->n; i++)
        rc = section(s, &s->f[i], e);
    str_puts(&s->html, "</body>\n</html>\n");
    if (rc == 0)
        rc = str_ok(&s->html, "index.html", e) || str_ok(&s->md, "index.md", e) ||
             file_write(path_join(path, results, "index.html"), str_c(&s->html), s->html.len, e) ||
             file_write(path_join(path, results, "index.md"), str_c(&s->md), s->md.len, e);
    for (size_t i = 0; i < s->n; i++)
        jdoc_free(&s->f[i].doc);
    str_free(&s->html);
    str_free(&s->md);
    arena_free(&s->a);
    free(s);
    return rc ? -1 : 0;
}
