/* Loads the model given and prints its inputs: the smallest program on mpr.h. */
#include <mpr.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    mpr_context *ctx = NULL;
    mpr_model *model = NULL;
    mpr_value_info info;
    if (argc != 2 || mpr_context_create(NULL, &ctx) != MPR_OK) return 1;
    if (mpr_model_load(ctx, argv[1], NULL, &model) != MPR_OK) {
        fprintf(stderr, "%s\n", mpr_last_error(ctx).message);
        return 1;
    }
    for (int i = 0; i < mpr_model_input_count(model); i++)
        if (mpr_model_input(model, i, &info) == MPR_OK) printf("%s rank %d\n", info.name, info.rank);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    return 0;
}
