/*
 * A manifest's checks: whether cells of its tables are as expected. A check looks into the table's TSV without times (NAME.det.tsv, or
 * NAME.tsv where the table has no time column), so that it can be repeated without the program.
 *
 *   {table: table1, row: "budget 3/DASH-2", column: RULER, min: 40, max: 60}      the cell lies within the bounds (either may be left out)
 *   {table: table1, row: "budget 3/DASH-2", column: RULER, above: "budget 3/Uniform"}   ... and is not below the cell of another row
 *     (min then is the least difference, default 0)
 *   {table: table1, against: FILE.tsv, within: 1.5}                                    every number that FILE has, too, in the row and
 *     column of the same names
 *   scale: tiny                                                                        only at this scale
 *
 * A row is called by its first field, or by its first two joined with '/'.
 */
#ifndef EXPERIMENTS_CHECKS_H
#define EXPERIMENTS_CHECKS_H

#include "experiments/manifest.h"

/* What is known of a table that was made before any run: whether its rows and columns stay as they are (a column may get another beside it,
 * NAME se), and what rows may be called by that are not there yet. */
struct check_shape {
    bool rows, columns;
    const char *const *labels; /* rows begin with one of these, after "BLOCK/" */
    size_t n_labels;
};
/* What a check names that its table in dir, made before any run, will not have: said in why, which stays empty when there is nothing to
 * say or the table is not there. An error is a file that cannot be read. */
int check_known(const struct check *c, const char *dir, const struct check_shape *s, struct str *why, struct err *e);

/* One check against the tables in dir: one line of what was seen, *held whether it is as expected. A table, row, column or number that
 * is missing does not hold. An error is a file that cannot be read. */
int check_run(const struct check *c, const char *dir, struct str *line, bool *held, struct err *e);

#endif
