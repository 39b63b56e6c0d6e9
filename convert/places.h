/* Names of values inside bodies and functions, as the importer calls what it copies from there:
 * "OWNER/BRANCH/NAME", "CALL/FUNCTION/NAME", "OWNER/Loop/TURN/NAME". All turns have one place, with
 * a star for the number. Results of branches and functions have the name of what they give the node
 * around, and formals that of what they are given: no place has those. */
#ifndef MPRI_CONVERT_PLACES_H
#define MPRI_CONVERT_PLACES_H

#include "convert/mix.h"

/* Place of a name of the scope. */
const char *mpri_place(Pool *pool, const MixScope *s, const char *name);
/* Place of a value of an imported model. */
const char *mpri_place_imported(Pool *pool, const char *name);

#endif
