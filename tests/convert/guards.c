/* Patterns that 16 bits would break: each kept in float32 with its reason, its harmless
 * neighbour not, switched off by name, overridden by force only. One row, one conversion, one
 * look at a node. */
#include "tests/convert/models.h"

typedef struct Row {
    const char *model;   /* guard_MODEL.onnx; with a "/" in front MODEL.onnx */
    const char *options; /* rules and "no-guard NAME", separated by ';' */
    const char *data;    /* scale of the calibration data ("64x64*SCALE": of an image), or NULL */
    const char *node, *expected; /* start of what --explain says of its unit, or an error */
} Row;

static const Row rows[] = {
    {"eps_sqrt", "", NULL, "it", "float, eps"},
    {"eps_sqrt", "", NULL, "root", "float, eps"},
    {"eps_sqrt", "include op:Add|Sqrt", NULL, "it", "float, eps"},
    {"eps_sqrt", "include op:Add|Sqrt;no-guard eps", NULL, "root", "float16, user-op"},
    {"eps_sqrt", "force-include op:Sqrt", NULL, "root", "float16, user-op"},
    {"eps_sqrt", "exclude node:it", NULL, "it", "float, user-name"},
    {"eps_sqrt_large", "", NULL, "root", "float16"},
    {"eps_div", "", NULL, "it", "float, eps"},
    {"eps_div", "", NULL, "reshape", "float, eps"},
    {"eps_div_large", "", NULL, "it", "float16"},
    {"eps_max", "", NULL, "it", "float, eps"},
    {"eps_max_large", "", NULL, "it", "float16"},
    {"eps_clip", "", NULL, "it", "float, eps"},
    {"eps_clip_large", "", NULL, "it", "float16"},
    {"eps_pow", "", NULL, "it", "float, eps"},
    {"eps_positive_pow", "", NULL, "it", "float16, allow-spread"},
    {"eps_numerator", "", NULL, "it", "float16, allow-between"},
    {"eps_blocked", "no-guard eps", NULL, "root", "float16"},
    {"eps_blocked", "", NULL, "root", "float16"},
    {"eps_constant_node", "", NULL, "it", "float, eps"},
    {"eps_vector", "", NULL, "it", "float, eps"},
    {"eps_negative", "", NULL, "root", "float16"},
    {"mask_add", "", NULL, "it", "float, mask"},
    {"mask_add", "include op:Add|Softmax", NULL, "soft", "float, mask"},
    {"mask_add", "no-guard mask", NULL, "it", "float, range-init"},
    {"mask_add", "force-include op:Add", NULL, "it", "float16, user-op"},
    {"mask_add", "exclude op:Add", NULL, "it", "float, user-op"},
    {"mask_inf", "", NULL, "it", "float, mask"},
    {"mask_inf", "force-include op:Add|Softmax", NULL, "it", "float16, user-op"},
    {"mask_where", "", NULL, "it", "float, mask"},
    {"mask_where", "force-include op:Where", NULL, "it", "float16, user-op"},
    {"mask_mul", "", NULL, "scale", "float, mask"},
    {"mask_mul", "force-include op:Mul|Add", NULL, "scale", "!cannot be shown to be added just once"},
    {"mask_exp", "", NULL, "it", "float, mask"},
    {"mask_small", "", NULL, "it", "float, not-adjacent"},
    {"mask_elsewhere", "", NULL, "it", "float, range-init"},
    {"mask_twice", "", NULL, "first", "float, mask"},
    {"mask_twice", "force-include op:Add", NULL, "it", "!cannot be shown to be added just once"},
    {"mask_scaled", "force-include op:Add|Mul", NULL, "it", "!cannot be shown to be added just once"},
    {"variance", "", NULL, "it", "float, variance"},
    {"variance", "include op:Sub|Mul|ReduceMean|Sqrt", NULL, "square", "float, variance"},
    {"variance", "include op:Sub|Mul|ReduceMean|Sqrt;no-guard variance", NULL, "square", "float16, user-op"},
    {"variance_pow", "", NULL, "root", "float, variance"},
    {"no_variance", "", NULL, "square", "float16"},
    {"exp_reduce", "include op:Exp|Transpose|ReduceSum", NULL, "it", "float, variance"},
    {"exp_reduce", "include op:Exp|Transpose|ReduceSum", NULL, "turn", "float, variance"},
    {"exp_alone", "include op:Exp", NULL, "it", "float16, user-op"},
    {"reduction", "", NULL, "it", "float, deny-list"},
    {"reduction", "lists +ReduceSum", NULL, "it", "float, reduction"},
    {"reduction", "lists +ReduceSum;no-guard reduction", NULL, "it", "float16"},
    {"reduction", "include op:ReduceSum", NULL, "it", "float16, user-op"},
    {"reduction", "include op:ReduceSum", "1", "it", "float16, user-op"},
    {"reduction", "include op:ReduceSum", "9000", "it", "float, reduction"},
    {"reduction_known", "lists +ReduceSum", NULL, "it", "float16"},
    {"deep", "max-reduction 32", NULL, "it", "float16, allow-list"},
    {"deep", "max-reduction 32", NULL, "back", "float, reduction"},
    {"loss", "", NULL, "it", "float, loss"},
    {"loss", "", NULL, "mm", "float16, allow-list"},
    {"loss", "include op:Mul", NULL, "it", "float, loss"},
    {"loss", "include op:Mul;no-guard loss", NULL, "it", "float16, user-op"},
    {"loss_name", "", NULL, "it", "float, loss"},
    {"no_loss", "", NULL, "it", "float16"},
    {"range", "", "1", "it", "float16"},
    {"range", "", "100", "it", "float, range-act"},
    {"range", "no-guard range-act", "100", "it", "float16"},
    {"range", "force-include node:it", "100", "it", "float16, user-name"},
    {"tiny", "", "1", "it", "float16"},
    {"tiny", "", "0.0001", "it", "float, range-act"},
    {"range_if", "", "1", "it", "float16"},
    {"range_if", "", "100", "it", "float, range-act"},
    {"range_if_same", "", "1", "it", "float16"},
    {"range_if_same", "", "100", "it", "float, range-act"},
    {"range_if_out", "", "1", "it", "float16"},
    {"range_if_out", "", "100", "it", "float, range-act"},
    {"range_if_unnamed", "", "1", "it", "float16"},
    {"range_if_unnamed", "", "100", "it", "float, range-act"},
    {"range_loop", "", "1", "it", "float16"},
    {"range_loop", "", "100", "it", "float, range-act"},
    {"range_state", "", "1", "it", "float16"},
    {"range_state", "", "100", "it", "float, range-act"},
    {"range_nested", "", "1", "it", "float16"},
    {"range_nested", "", "100", "it", "float, range-act"},
    {"range_scan", "", "1", "it", "float16"},
    {"range_scan", "", "100", "it", "float, range-act"},
    {"range_call", "", "1", "it", "float16"},
    {"range_call", "", "100", "it", "float, range-act"},
    {"range_call_out", "", "1", "it", "float16"},
    {"range_call_out", "", "100", "it", "float, range-act"},
    {"range_if", "", "100", "back", "float, range-act"},
    {"range_loop", "", "100", "back", "float, range-act"},
    {"range_nested", "", "100", "back", "float, range-act"},
    {"range_scan", "", "100", "back", "float, range-act"},
    {"range_call", "", "100", "back", "float, range-act"},
    {"range_if_same", "", "100", "other", "float16"},
    {"range_if_out", "", "100", "behind", "float, range-act"},
    {"range_call_out", "", "100", "behind", "float, range-act"},
    {"range_state", "", "1", "loop", "float16"},
    {"range_if", "no-guard range-act", "100", "it", "float16"},
    {"range_if", "force-include op:Mul", "100", "it", "float16, user-op"},
    {"range_calls", "", "100", "first:Swell/it", "float, not-adjacent"},
    {"range_calls", "", "100", "#2:Swell/it", "float, range-act"},
    {"range_norm", "include op:LayerNormalization", "0.1", "it", "float16, user-op"},
    {"range_norm", "include op:LayerNormalization", "10", "it", "float, range-act"},
    {"norm", "include op:LayerNormalization", "0.1", "it", "float16, user-op"},
    {"norm", "include op:LayerNormalization", "10", "it", "float, range-act"},
    {"offset", "include op:LayerNormalization", "1", "it", "float16, user-op"},
    {"/island_poor", "", NULL, "mm", "float16, allow-list"},
    {"/island_poor", "min-island 2", NULL, "mm", "float, island"},
    {"/island_rich", "min-island 2", NULL, "mm", "float16, allow-list"},
    {"/island_rich", "min-island 3", NULL, "end", "float, island"},
    {"eps_if", "", NULL, "it", "float, eps"},
    {"eps_if", "", NULL, "if", "float, eps"},
    {"eps_if", "", NULL, "other", "float16, allow-spread"},
    {"eps_if", "no-guard eps", NULL, "if", "float16"},
    {"eps_loop", "", NULL, "it", "float, eps"},
    {"eps_loop", "", NULL, "loop", "float, eps"},
    {"eps_loop", "", NULL, "root", "float, eps"},
    {"eps_state", "", NULL, "it", "float, eps"},
    {"eps_expanded", "", NULL, "it", "float, eps"},
    {"mask_fill", "", NULL, "it", "float, mask"},
    {"mask_fill", "", NULL, "trilu", "float, mask"},
    {"mask_fill", "force-include op:Add", NULL, "it", "!cannot be shown to be added just once"},
    {"mask_fill_elsewhere", "", NULL, "it", "float, range-init"},
    {"mask_floats", "", NULL, "it", "float, mask"},
    {"mask_if", "", NULL, "it", "float, mask"},
    {"mask_if", "", NULL, "if", "float, mask"},
    {"constant_float", "", NULL, "it", "float, range-init"},
    {"constant_float", "oor error", NULL, "it", "!1 values of 'm' do not fit float16"},
    {"constant_float", "oor error;exclude node:it", NULL, "it", "float, user-name"},
    {"variance_half", "", NULL, "root", "float, variance"},
    {"variance_half", "", NULL, "square", "float, variance"},
    {"unknown_products", "", NULL, "it", "float16, allow-list"},
    {"unknown_products", "max-reduction 32", NULL, "it", "float, reduction"},
    {"unknown_products", "max-reduction 32;include node:it", NULL, "it", "float16, user-name"},
    {"deep", "max-reduction 32;to bf16", NULL, "back", "float, reduction"},
    {"pool", "", "64x64", "it", "float16, allow-between"},
    {"pool", "", "64x64*100", "it", "float, reduction"},
    {"loss_sum", "", NULL, "it", "float, loss"},
    {"loss_sum", "", NULL, "mm", "float16, allow-list"},
    {"loss_scaled", "", NULL, "square", "float, loss"},
    {"loss_scaled", "no-guard loss", NULL, "square", "float, not-adjacent"},
    {"loss_rows", "", NULL, "it", "float, not-adjacent"},
    {"loss_word", "", NULL, "it", "float, loss"},
    {"glossary", "", NULL, "it", "float16"},
    {"loss_if", "", NULL, "it", "float, loss"},
    {"loss_if", "", NULL, "mm", "float16, allow-list"},
    {"shape_path", "", NULL, "it", "float, shape-path"},
    {"shape_path", "", NULL, "mm", "float, shape-path"},
    {"shape_loop", "", NULL, "it", "float, shape-path"},
    {"shape_elsewhere", "", NULL, "mm", "float16, allow-list"},
    {"range", "no-guard rnage", NULL, "it", "!no guard is named 'rnage'"},
};

static const char *calibration(Fixture *f, double scale, bool image)
{
    static float x[64 * 64];
    const char *path = in_folder(f->folder, "c.npz");
    mpr_tensor t = {.data = x, .dtype = MPR_FLOAT32, .rank = 2, .dims = {2, 8}};
    mpr_tensors *all;
    if (image) t = (mpr_tensor){.data = x, .dtype = MPR_FLOAT32, .rank = 4, .dims = {1, 1, 64, 64}};
    for (int i = 0; i < 64 * 64; i++) x[i] = (float)(scale * (i % 5 - 2.25));
    assert_call(mpr_tensors_create(f->ctx, &all), f->ctx);
    assert_call(mpr_tensors_put(all, "x", &t), all);
    assert_call(mpr_tensors_save(all, path), all);
    mpr_tensors_destroy(all);
    return path;
}

/* False when the row does not hold. */
static bool check(Fixture *f, const Row *r)
{
    bool fine = true;
    char name[96], text[256];
    const char *rules[8] = {NULL}, *off[4] = {NULL};
    int n_rules = 0, n_off = 0;
    mpr_convert_options o = {.size = sizeof o, .to = MPR_FLOAT16, .mode = "infer", .dry_run = true,
                             .rules = rules, .no_guard = off, .explain = r->node};
    char *explained = NULL;
    mpr_model *model;
    snprintf(text, sizeof text, "%s", r->options);
    for (char *at = strtok(text, ";"); at; at = strtok(NULL, ";")) {
        if (!strncmp(at, "no-guard ", 9)) off[n_off++] = at + 9;
        else if (!strncmp(at, "max-reduction ", 14)) o.max_reduction = atoi(at + 14);
        else if (!strncmp(at, "min-island ", 11)) o.min_island = atoi(at + 11);
        else if (!strncmp(at, "oor ", 4)) o.weights_oor = at + 4;
        else if (!strcmp(at, "to bf16")) o.to = MPR_BFLOAT16;
        else if (!strncmp(at, "lists ", 6)) {
            o.lists = in_folder(f->folder, "lists.yaml");
            FILE *file = fopen(o.lists, "w");
            assert_non_null(file);
            fprintf(file, "infer: [%s]\n", at + 6);
            fclose(file);
        } else {
            rules[n_rules++] = at;
        }
    }
    o.explained = &explained;
    bool image = r->data && !strncmp(r->data, "64x64", 5);
    double scale = image ? (r->data[5] ? atof(r->data + 6) : 1) : r->data ? atof(r->data) : 0;
    if (r->data) o.calib = calibration(f, scale, image);
    snprintf(name, sizeof name, "convert/check/%s%s.onnx", *r->model == '/' ? "" : "guard_",
             r->model + (*r->model == '/'));
    assert_call(mpr_model_load(f->ctx, test_data(name), NULL, &model), f->ctx);
    mpr_status st = mpr_convert(model, NULL, &o, NULL);
    const char *message = mpr_last_error(model).message;
    if (*r->expected == '!') {
        fine = st != MPR_OK && strstr(message, r->expected + 1);
        if (!fine)
            print_error("%s [%s]: %s\n", r->model, r->options, st == MPR_OK ? "no error" : message);
    } else {
        if (st != MPR_OK) fail_msg("%s [%s]: %s", r->model, r->options, message);
        const char *unit = strstr(explained, ": ");
        fine = unit && !strncmp(unit + 2, r->expected, strlen(r->expected));
        if (!fine)
            print_error("%s [%s] %s: wanted %s, found %s\n", r->model, r->options,
                        r->data ? r->data : "-", r->expected, explained);
    }
    mpr_free_text(f->ctx, explained);
    mpr_model_destroy(model);
    return fine;
}

static void every_row(void **state)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) wrong += !check(*state, &rows[i]);
    assert_int_equal(wrong, 0);
}

/* A forced mask is the largest finite value in the file, in training beside the original. */
static void saturated(void **state)
{
    static const char *const modes[] = {"infer", "train"};
    Fixture *f = *state;
    for (int i = 0; i < 2; i++) {
        const char *to = in_folder(f->folder, "y.onnx");
        mpr_convert_options o = {.size = sizeof o, .to = MPR_FLOAT16, .mode = modes[i],
                                 .rules = (const char *const[]){"force-include op:Add", NULL},
                                 .verify = calibration(f, 1, false), .rtol = 0.05};
        mpr_model *model;
        assert_call(mpr_model_load(f->ctx, test_data("convert/check/guard_mask_add.onnx"), NULL, &model),
                    f->ctx);
        assert_call(mpr_convert(model, to, &o, NULL), model);
        mpr_model_destroy(model);
        size_t n;
        char *bytes = read_file(to, &n);
        static const uint8_t most[] = {0xff, 0xfb, 0xff, 0xfb}; /* -65504 */
        static const float was[] = {-1e9f, -1e9f};
        assert_non_null(memmem(bytes, n, most, sizeof most));
        assert_int_equal(memmem(bytes, n, was, sizeof was) != NULL, i);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_row, setup, teardown),
        cmocka_unit_test_setup_teardown(saturated, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
