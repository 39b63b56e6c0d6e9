/* Our statement of the messages against the file of an installed ONNX package: every name and
 * number of theirs must be ours. Theirs may be older, so ours may have more. */
#include <stdio.h>
#include <string.h>

#include "importer/onnx.pb-c.h"
#include "tests/support/wire_model.h"

#define THEIRS "/usr/include/onnx/onnx.proto"

typedef struct Pair {
    const char *name;
    const ProtobufCMessageDescriptor *d;
} Pair;

static const Pair messages[] = {
    {"AttributeProto", &onnx__attribute_proto__descriptor},
    {"ValueInfoProto", &onnx__value_info_proto__descriptor},
    {"NodeProto", &onnx__node_proto__descriptor},
    {"TrainingInfoProto", &onnx__training_info_proto__descriptor},
    {"ModelProto", &onnx__model_proto__descriptor},
    {"StringStringEntryProto", &onnx__string_string_entry_proto__descriptor},
    {"TensorAnnotation", &onnx__tensor_annotation__descriptor},
    {"GraphProto", &onnx__graph_proto__descriptor},
    {"TensorProto", &onnx__tensor_proto__descriptor},
    {"Segment", &onnx__tensor_proto__segment__descriptor},
    {"SparseTensorProto", &onnx__sparse_tensor_proto__descriptor},
    {"TensorShapeProto", &onnx__tensor_shape_proto__descriptor},
    {"Dimension", &onnx__tensor_shape_proto__dimension__descriptor},
    {"TypeProto", &onnx__type_proto__descriptor},
    {"Tensor", &onnx__type_proto__tensor__descriptor},
    {"Sequence", &onnx__type_proto__sequence__descriptor},
    {"Map", &onnx__type_proto__map__descriptor},
    {"Optional", &onnx__type_proto__optional__descriptor},
    {"SparseTensor", &onnx__type_proto__sparse_tensor__descriptor},
    {"Opaque", &onnx__type_proto__opaque__descriptor},
    {"OperatorSetIdProto", &onnx__operator_set_id_proto__descriptor},
    {"FunctionProto", &onnx__function_proto__descriptor},
    {"DeviceConfigurationProto", &onnx__device_configuration_proto__descriptor},
    {"NodeDeviceConfigurationProto", &onnx__node_device_configuration_proto__descriptor},
    {"ShardingSpecProto", &onnx__sharding_spec_proto__descriptor},
    {"ShardedDimProto", &onnx__sharded_dim_proto__descriptor},
    {"SimpleShardedDimProto", &onnx__simple_sharded_dim_proto__descriptor},
    {"IntIntListEntryProto", &onnx__int_int_list_entry_proto__descriptor},
};

static const ProtobufCEnumDescriptor *const enums[] = {
    &onnx__tensor_proto__data_type__descriptor,
    &onnx__tensor_proto__data_location__descriptor,
    &onnx__attribute_proto__attribute_type__descriptor,
};

static const ProtobufCMessageDescriptor *find_message(const char *name)
{
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++)
        if (!strcmp(messages[i].name, name)) return messages[i].d;
    return NULL;
}

static const ProtobufCEnumDescriptor *find_enum(const char *name)
{
    for (size_t i = 0; i < sizeof enums / sizeof enums[0]; i++)
        if (!strcmp(enums[i]->short_name, name)) return enums[i];
    return NULL;
}

typedef struct Scan {
    char stack[8][64]; /* open blocks: message or enum names, "" for a oneof */
    bool is_enum[8];
    int depth, fields, values;
} Scan;

static const char *enclosing(const Scan *s)
{
    int d = s->depth - 1;
    while (d > 0 && !s->stack[d][0]) d--;
    return s->stack[d];
}

static void check_field(Scan *s, const char *name, unsigned number)
{
    const ProtobufCMessageDescriptor *d = find_message(enclosing(s));
    if (!d) print_error("message %s is not ours\n", enclosing(s));
    assert_non_null(d);
    const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field_by_name(d, name);
    if (!f || f->id != number) print_error("%s.%s = %u is not ours\n", d->short_name, name, number);
    assert_non_null(f);
    assert_int_equal(f->id, number);
    s->fields++;
}

static void check_value(Scan *s, const char *name, int number)
{
    const ProtobufCEnumDescriptor *d = find_enum(s->stack[s->depth - 1]);
    if (!d) return; /* Version and OperatorStatus: not needed */
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value_by_name(d, name);
    if (!v || v->value != number)
        print_error("%s.%s = %d is not ours\n", d->short_name, name, number);
    assert_non_null(v);
    assert_int_equal(v->value, number);
    s->values++;
}

/* One statement: "message X {", "enum X {", "oneof x {", "}", "label type name = number …;". */
static void statement(Scan *s, char *text)
{
    char word[4][64] = {{0}};
    unsigned number;
    int n = sscanf(text, " %63s %63s %63s %63s", word[0], word[1], word[2], word[3]);
    char *equals = strchr(text, '=');
    if (n > 0 && strchr(text, '{')) {
        assert_true(s->depth < 8);
        strcpy(s->stack[s->depth], strcmp(word[0], "oneof") ? word[1] : "");
        s->is_enum[s->depth++] = !strcmp(word[0], "enum");
    } else if (n > 0 && word[0][0] == '}') {
        s->depth--;
    } else if (equals && s->depth > 0 && sscanf(equals + 1, " %i", (int *)&number) == 1) {
        bool bare = !strcmp(word[0], "optional") || !strcmp(word[0], "repeated");
        if (s->is_enum[s->depth - 1]) check_value(s, word[0], (int)number);
        else check_field(s, word[bare ? 2 : 1], number);
    }
}

static void test_same_names_and_numbers(void **state)
{
    (void)state;
    FILE *f = fopen(THEIRS, "r");
    if (!f) {
        print_message("%s is not installed\n", THEIRS);
        skip();
    }
    Scan s = {.depth = 0};
    char text[512];
    size_t n = 0;
    for (int c; (c = fgetc(f)) != EOF;) {
        if (c == '/') { /* comments end with the line */
            while (c != '\n' && c != EOF) c = fgetc(f);
            continue;
        }
        if (n < sizeof text - 1) text[n++] = (char)c;
        if (c != ';' && c != '{' && c != '}') continue;
        text[n] = '\0';
        statement(&s, text);
        n = 0;
    }
    fclose(f);
    assert_true(s.fields > 90);
    assert_true(s.values > 30);
}

static void test_newest_fields_are_there(void **state)
{
    (void)state;
    assert_int_equal(protobuf_c_message_descriptor_get_field_by_name(&onnx__node_proto__descriptor,
                                                                     "metadata_props")
                         ->id,
                     9);
    assert_int_equal(
        protobuf_c_message_descriptor_get_field_by_name(&onnx__node_proto__descriptor, "overload")
            ->id,
        8);
    assert_int_equal(protobuf_c_message_descriptor_get_field_by_name(&onnx__node_proto__descriptor,
                                                                     "device_configurations")
                         ->id,
                     10);
    assert_int_equal(protobuf_c_message_descriptor_get_field_by_name(
                         &onnx__function_proto__descriptor, "attribute_proto")
                         ->id,
                     11);
    assert_int_equal(protobuf_c_message_descriptor_get_field_by_name(
                         &onnx__function_proto__descriptor, "value_info")
                         ->id,
                     12);
    assert_int_equal(protobuf_c_enum_descriptor_get_value_by_name(
                         &onnx__tensor_proto__data_type__descriptor, "FLOAT4E2M1")
                         ->value,
                     23);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_names_and_numbers),
        cmocka_unit_test(test_newest_fields_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
