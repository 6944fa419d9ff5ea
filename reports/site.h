/*
 * One page over a results folder: DIR/NAME/SCALE/report.json (title, verdict, reports) with its tables and figures, as DIR/index.html (no
 * scripts, nothing from elsewhere) and DIR/index.md. Verdicts first, provenance behind each report. Equal results give equal pages.
 */
#ifndef REPORTS_SITE_H
#define REPORTS_SITE_H

#include "core/str.h"

struct site_report {
    const char *name, *title, *verdict;
};
/* Writes DIR/report.json: what the page says about this folder. command: how it was made. */
int site_note(const char *dir, const char *manifest, const char *scale, const char *title, const char *command, const struct site_report *r,
              size_t n, struct err *e);
/* Writes index.html and index.md. Folders without report.json are left out. */
int site_write(const char *results, struct err *e);
/* Text with &, <, > and quotes as HTML has them. */
void html_escape(struct str *out, const char *s);

#endif
