// Python's view of the kernels. Every argument is checked here, so that nothing a caller passes can make the kernels
// read or write outside its arrays.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layers.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace slipstream;

void bind_sampling(nb::module_& m);  // sampling_bindings.cpp
void bind_probe(nb::module_& m);     // probe.cpp

namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using WritableArray = nb::ndarray<nb::device::cpu>;
using OptionalArray = std::optional<Array>;
using FloatArray = nb::ndarray<nb::numpy, float>;

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    std::string message;
    const auto add = [&](const auto& part) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
            message += std::to_string(part);
        else
            message += part;
    };
    (add(parts), ...);
    throw nb::value_error(message.c_str());
}

constexpr int64_t ANY = -1;

std::string shape_text(const int64_t* shape, size_t dimensions) {
    std::string text = "(";
    for (size_t i = 0; i < dimensions; ++i)
        text += (i ? ", " : "") + (shape[i] == ANY ? std::string("any") : std::to_string(shape[i]));
    return text + (dimensions == 1 ? ",)" : ")");
}

template <class T>
const char* type_name() {
    if constexpr (std::is_same_v<T, float>) return "float32";
    if constexpr (std::is_same_v<T, int32_t>) return "int32";
    if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
}

// The data of an array after checking element type, memory order and alignment.
template <class T, class AnyArray>
auto elements(const AnyArray& array, const std::string& name) {
    if (array.dtype() != nb::dtype<T>()) fail(name, " must have dtype ", type_name<T>());
    int64_t stride = 1;
    for (size_t i = array.ndim(); i-- > 0;) {
        if (array.shape(i) > 1 && array.stride(i) != stride && array.size() > 0) fail(name, " must be C-contiguous");
        stride *= static_cast<int64_t>(array.shape(i));
    }
    using Element = std::conditional_t<AnyArray::ReadOnly, const T, T>;
    auto* data = static_cast<Element*>(array.data());
    if (reinterpret_cast<uintptr_t>(data) % sizeof(T) != 0) fail(name, " must be aligned to its elements");
    return data;
}

// Likewise, with the shape; ANY matches any extent.
template <class T, class AnyArray>
auto elements(const AnyArray& array, const std::string& name, std::initializer_list<int64_t> shape) {
    bool matches = array.ndim() == shape.size();
    for (size_t i = 0; matches && i < shape.size(); ++i)
        matches = shape.begin()[i] == ANY || shape.begin()[i] == static_cast<int64_t>(array.shape(i));
    if (!matches)
        fail(name, " must have shape ", shape_text(shape.begin(), shape.size()), ", not ",
             shape_text(array.shape_ptr(), array.ndim()));
    return elements<T>(array, name);
}

int64_t extent(const Array& array, size_t dimension) {
    return static_cast<int64_t>(array.shape(dimension));
}

const Format& format_named(const std::string& name) {
    const Format* format = find_format(name.c_str());
    if (!format) fail("source type ", name, " is not supported");
    return *format;
}

// The bytes of a rows × columns tensor of that type.
const std::byte* tensor_bytes(const Array& data, const Format& format, int64_t rows, int64_t columns) {
    if (rows < 1 || columns < 1) fail("a tensor needs at least one row and one column, not ", rows, " × ", columns);
    if (rows > (int64_t{1} << 31) - 1 || columns > (int64_t{1} << 31) - 1) fail("tensor too large");
    if (columns % format.block) fail(format.name, " needs a multiple of ", format.block, " columns, not ", columns);
    const auto* bytes = elements<uint8_t>(data, "data");
    const int64_t need = rows * (columns / format.block) * format.bytes;
    if (static_cast<int64_t>(data.size()) != need)
        fail("data of ", rows, " × ", columns, " ", format.name, " must be ", need, " bytes, not ", data.size());
    return reinterpret_cast<const std::byte*>(bytes);
}

// A new float array; `shape` may be that of another array.
FloatArray new_array(std::vector<size_t> shape) {
    size_t count = 1;
    for (const size_t extent : shape) count *= extent;
    auto* buffer = new Buffer(count * sizeof(float));
    const nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<Buffer*>(p); });
    return FloatArray(reinterpret_cast<float*>(buffer->data()), shape.size(), shape.data(), owner);
}
FloatArray new_array_like(const Array& array) {
    std::vector<size_t> shape(array.ndim());
    for (size_t i = 0; i < shape.size(); ++i) shape[i] = array.shape(i);
    return new_array(shape);
}

const float* bias_of(const OptionalArray& bias, const std::string& name, const Weight& weight) {
    return bias ? elements<float>(*bias, name, {weight.view().out_features}) : nullptr;
}

const char* dtype_of(const Weight& weight) {
    const WeightType type = weight.view().type;
    if (is_quantised(type)) return packing_of(type).bits == 4 ? "int4" : "int8";
    return type == WeightType::f32 ? "f32" : "bf16";
}

WeightType weight_type(const std::string& dtype, const Format& format, int64_t in_features) {
    if (dtype == "f32") return WeightType::f32;
    if (dtype == "bf16") return WeightType::bf16;
    if (dtype == "auto") return format.native;
    if (dtype != "int8") fail("dtype must be auto, f32, bf16 or int8, not ", dtype);
    if (in_features % BLOCK) fail("int8 needs a multiple of ", BLOCK, " columns, not ", in_features);
    return WeightType::q8_0;
}

Weight* pack(const Array& data, const std::string& source, int64_t out_features, int64_t in_features,
             const std::string& dtype, const OptionalArray& row_order) {
    const Format& format = format_named(source);
    const std::byte* bytes = tensor_bytes(data, format, out_features, in_features);
    const WeightType type = weight_type(dtype, format, in_features);
    std::vector<int32_t> order;
    if (row_order) {
        const int32_t* rows = elements<int32_t>(*row_order, "row_order", {out_features});
        order.assign(rows, rows + out_features);
        for (const int32_t row : order)
            if (row < 0 || row >= out_features) fail("row_order names row ", row, " of ", out_features);
    }
    const nb::gil_scoped_release release;
    return new Weight(bytes, format, out_features, in_features, type, row_order ? order.data() : nullptr);
}

FloatArray unpack(const Array& data, const std::string& source, int64_t rows, int64_t columns) {
    const Format& format = format_named(source);
    const std::byte* bytes = tensor_bytes(data, format, rows, columns);
    FloatArray out = new_array({static_cast<size_t>(rows), static_cast<size_t>(columns)});
    format.dequantise(bytes, rows * columns, out.data());
    return out;
}

FloatArray embed(const Weight& weight, const Array& tokens) {
    const int32_t* rows = elements<int32_t>(tokens, "tokens", {ANY});
    const int64_t count = extent(tokens, 0);
    for (int64_t i = 0; i < count; ++i)
        if (rows[i] < 0 || rows[i] >= weight.view().out_features)
            fail("token ", rows[i], " is outside the embedding's ", weight.view().out_features, " rows");
    FloatArray out = new_array({static_cast<size_t>(count), static_cast<size_t>(weight.view().in_features)});
    const std::vector<int32_t> copy(rows, rows + count);
    const nb::gil_scoped_release release;
    run_embed(weight, copy.data(), count, out.data());
    return out;
}

FloatArray linear(const Array& x, const Weight& weight, const OptionalArray& bias) {
    const WeightView view = weight.view();
    const float* in = elements<float>(x, "x", {ANY, view.in_features});
    Linear task = {in, nullptr, view, bias_of(bias, "bias", weight), nullptr};
    FloatArray out = new_array({x.shape(0), static_cast<size_t>(view.out_features)});
    task.out = out.data();
    const nb::gil_scoped_release release;
    run_linear(task, extent(x, 0));
    return out;
}

FloatArray rms_norm(const Array& x, const Array& weight, float epsilon) {
    if (x.ndim() < 1) fail("x must have at least one dimension");
    const int64_t count = extent(x, x.ndim() - 1);
    const float *in = elements<float>(x, "x"), *scale = elements<float>(weight, "weight", {count});
    FloatArray out = new_array_like(x);
    const nb::gil_scoped_release release;
    if (x.size() > 0) run_rms_norm(in, scale, epsilon, static_cast<int64_t>(x.size()) / count, count, out.data());
    return out;
}

FloatArray rope(const Array& x, const Array& cos, const Array& sin) {
    const float* in = elements<float>(x, "x", {ANY, ANY, ANY});
    const int64_t rows = extent(x, 0), heads = extent(x, 1), head_dim = extent(x, 2);
    if (head_dim % 2) fail("x must have an even head_dim, not ", head_dim);
    const float* cosines = elements<float>(cos, "cos", {rows, head_dim / 2});
    const float* sines = elements<float>(sin, "sin", {rows, head_dim / 2});
    FloatArray out = new_array_like(x);
    const nb::gil_scoped_release release;
    run_rope(in, cosines, sines, rows, heads, head_dim, out.data());
    return out;
}

FloatArray swiglu(const Array& gate, const Array& up) {
    const float *a = elements<float>(gate, "gate"), *b = elements<float>(up, "up");
    if (gate.ndim() != up.ndim() || !std::equal(gate.shape_ptr(), gate.shape_ptr() + gate.ndim(), up.shape_ptr()))
        fail("gate and up must have the same shape, not ", shape_text(gate.shape_ptr(), gate.ndim()), " and ",
             shape_text(up.shape_ptr(), up.ndim()));
    FloatArray out = new_array_like(gate);
    const nb::gil_scoped_release release;
    run_swiglu(a, b, static_cast<int64_t>(gate.size()), out.data());
    return out;
}

// Copies what it checked, so that later changes to the caller's arrays can't undo the checks. The caches themselves
// are shared: their contents may change, their memory is held.
class Rows {
  public:
    Rows(const Array& cos, const Array& sin, const Array& sequence, const Array& slot, const Array& prefix,
         const Array& ancestors_start, const Array& ancestors, const nb::sequence& keys, const nb::sequence& values) {
        const float* cosines = elements<float>(cos, "cos", {ANY, ANY});
        const int64_t rows = extent(cos, 0), half = extent(cos, 1);
        const float* sines = elements<float>(sin, "sin", {rows, half});
        cos_.assign(cosines, cosines + rows * half);
        sin_.assign(sines, sines + rows * half);
        copy(sequence_, sequence, "sequence", rows);
        copy(slot_, slot, "slot", rows);
        copy(prefix_, prefix, "prefix", rows);
        copy(ancestors_start_, ancestors_start, "ancestors_start", rows + 1);
        copy(ancestors_, ancestors, "ancestors", ANY);
        view_ = {rows,
                 0,
                 0,
                 2 * half,
                 cos_.data(),
                 sin_.data(),
                 sequence_.data(),
                 slot_.data(),
                 prefix_.data(),
                 ancestors_start_.data(),
                 ancestors_.data(),
                 nullptr,
                 KEY_BLOCK};
        add_caches(keys, values);
        check_rows();
    }

    const RowsView& view() const { return view_; }

  private:
    static void copy(std::vector<int32_t>& to, const Array& array, const char* name, int64_t count) {
        const int32_t* data = elements<int32_t>(array, name, {count});
        to.assign(data, data + array.size());
    }

    void add_caches(const nb::sequence& keys, const nb::sequence& values) {
        const size_t count = nb::len(keys);
        if (nb::len(values) != count) fail("keys has ", count, " arrays and values ", nb::len(values));
        for (size_t i = 0; i < count; ++i) {
            const std::string name = "[" + std::to_string(i) + "]";
            WritableArray key, value;
            if (!nb::try_cast(keys[i], key)) fail("keys", name, " must be a writable array");
            if (!nb::try_cast(values[i], value)) fail("values", name, " must be a writable array");
            float* key_data = elements<float>(key, "keys" + name, {ANY, ANY, ANY, view_.head_dim, KEY_BLOCK});
            const auto layers = static_cast<int64_t>(key.shape(0)), kv_heads = static_cast<int64_t>(key.shape(1));
            const int64_t capacity = static_cast<int64_t>(key.shape(2)) * KEY_BLOCK;
            if (i == 0) {
                view_.layers = layers;
                view_.kv_heads = kv_heads;
            } else if (layers != view_.layers || kv_heads != view_.kv_heads) {
                fail("keys", name, " must have as many layers and heads as keys[0]");
            }
            float* value_data = elements<float>(value, "values" + name, {layers, kv_heads, capacity, view_.head_dim});
            sequences_.push_back({key_data, value_data, capacity});
            held_.push_back(std::move(key));
            held_.push_back(std::move(value));
        }
        view_.sequences = sequences_.data();
    }

    void check_rows() {
        if (ancestors_start_[0] != 0) fail("ancestors_start must begin with 0, not ", ancestors_start_[0]);
        if (ancestors_start_.back() != static_cast<int64_t>(ancestors_.size()))
            fail("ancestors_start must end with ", ancestors_.size(), ", not ", ancestors_start_.back());
        std::vector<std::pair<int32_t, int32_t>> written;
        for (int64_t row = 0; row < view_.rows; ++row) {
            const std::string of_row = " of row " + std::to_string(row);
            if (sequence_[row] < 0 || sequence_[row] >= static_cast<int64_t>(sequences_.size()))
                fail("sequence", of_row, " is ", sequence_[row], ": there are ", sequences_.size());
            const int64_t capacity = sequences_[sequence_[row]].capacity;
            if (slot_[row] < 0 || slot_[row] >= capacity)
                fail("slot", of_row, " is ", slot_[row], ": the cache has ", capacity);
            if (prefix_[row] < 0 || prefix_[row] > capacity)
                fail("prefix", of_row, " is ", prefix_[row], ": the cache has ", capacity, " slots");
            const int32_t begin = ancestors_start_[row], end = ancestors_start_[row + 1];
            if (end < begin || end > static_cast<int64_t>(ancestors_.size()))
                fail("ancestors_start must not decrease, as it does after row ", row);
            bool sees_itself = slot_[row] < prefix_[row];
            for (int32_t i = begin; i < end; ++i) {
                if (ancestors_[i] < 0 || ancestors_[i] >= capacity)
                    fail("an ancestor", of_row, " is ", ancestors_[i], ": the cache has ", capacity, " slots");
                sees_itself |= ancestors_[i] == slot_[row];
            }
            if (!sees_itself) fail("slot", of_row, " is in neither its prefix nor its ancestors");
            written.emplace_back(sequence_[row], slot_[row]);
            const int64_t keys = int64_t{prefix_[row]} + (end - begin);
            view_.most_keys = std::max(view_.most_keys, (keys + KEY_BLOCK - 1) / KEY_BLOCK * KEY_BLOCK);
        }
        std::sort(written.begin(), written.end());
        const auto twice = std::adjacent_find(written.begin(), written.end());
        if (twice != written.end())
            fail("slot ", twice->second, " of sequence ", twice->first, " is written by two rows");
    }

    RowsView view_;
    std::vector<float> cos_, sin_;
    std::vector<int32_t> sequence_, slot_, prefix_, ancestors_start_, ancestors_;
    std::vector<Sequence> sequences_;
    std::vector<WritableArray> held_;
};

void check_heads(int64_t heads, const RowsView& rows) {
    if (rows.rows > 0 && (heads < 1 || heads % rows.kv_heads))
        fail("heads must be a multiple of the cache's ", rows.kv_heads, " key/value heads, not ", heads);
}

FloatArray attention(const Array& q, const Rows& rows, int64_t layer, float scale) {
    const RowsView& view = rows.view();
    const float* in = elements<float>(q, "q", {view.rows, ANY});
    const int64_t width = extent(q, 1);
    if (view.head_dim == 0 || width % view.head_dim) fail("q must be heads × ", view.head_dim, " wide, not ", width);
    check_heads(width / view.head_dim, view);
    if (view.rows > 0 && (layer < 0 || layer >= view.layers)) fail("layer is ", layer, ": the cache has ", view.layers);
    FloatArray out = new_array_like(q);
    const nb::gil_scoped_release release;
    if (view.rows > 0) run_attention({in, out.data(), &view, layer, width / view.head_dim, scale});
    return out;
}

class Layer {
  public:
    Layer(int64_t index, int64_t heads, int64_t kv_heads, int64_t head_dim, float epsilon, float scale, bool use_rope,
          const Array& attention_norm, nb::object q, nb::object k, nb::object v, nb::object o, const Array& mlp_norm,
          nb::object gate, nb::object up, nb::object down, const OptionalArray& q_bias, const OptionalArray& k_bias,
          const OptionalArray& v_bias, const OptionalArray& o_bias, const OptionalArray& gate_bias,
          const OptionalArray& up_bias, const OptionalArray& down_bias, const OptionalArray& q_norm,
          const OptionalArray& k_norm) {
        if (index < 0) fail("index must be 0 or more, not ", index);
        if (heads < 1 || kv_heads < 1 || heads % kv_heads)
            fail("heads (", heads, ") must be a multiple of kv_heads (", kv_heads, ")");
        if (head_dim < 2 || head_dim % 2) fail("head_dim must be even, not ", head_dim);
        view_.index = index;
        view_.heads = heads;
        view_.kv_heads = kv_heads;
        view_.head_dim = head_dim;
        view_.epsilon = epsilon;
        view_.scale = scale;
        view_.use_rope = use_rope;
        vectors_.reserve(11);
        weights_.reserve(7);
        const int64_t q_width = heads * head_dim, kv_width = kv_heads * head_dim;
        const int64_t hidden = weight(std::move(q), "q", q_width, ANY, view_.q).in_features;
        weight(std::move(k), "k", kv_width, hidden, view_.k);
        weight(std::move(v), "v", kv_width, hidden, view_.v);
        weight(std::move(o), "o", hidden, q_width, view_.o);
        const int64_t wide = weight(std::move(gate), "gate", ANY, hidden, view_.gate).out_features;
        weight(std::move(up), "up", wide, hidden, view_.up);
        weight(std::move(down), "down", hidden, wide, view_.down);
        view_.attention_norm = vector(attention_norm, "attention_norm", hidden);
        view_.mlp_norm = vector(mlp_norm, "mlp_norm", hidden);
        view_.q_bias = vector(q_bias, "q_bias", q_width);
        view_.k_bias = vector(k_bias, "k_bias", kv_width);
        view_.v_bias = vector(v_bias, "v_bias", kv_width);
        view_.o_bias = vector(o_bias, "o_bias", hidden);
        view_.gate_bias = vector(gate_bias, "gate_bias", wide);
        view_.up_bias = vector(up_bias, "up_bias", wide);
        view_.down_bias = vector(down_bias, "down_bias", hidden);
        view_.q_norm = vector(q_norm, "q_norm", head_dim);
        view_.k_norm = vector(k_norm, "k_norm", head_dim);
    }
    const LayerView& view() const { return view_; }

  private:
    WeightView& weight(nb::object object, const char* name, int64_t out_features, int64_t in_features,
                       WeightView& view) {
        const Weight* weight = nullptr;
        if (!nb::try_cast(object, weight) || !weight) fail(name, " must be a Weight");
        view = weight->view();
        const int64_t expected[] = {out_features, in_features}, actual[] = {view.out_features, view.in_features};
        for (int i = 0; i < 2; ++i)
            if (expected[i] != ANY && expected[i] != actual[i])
                fail(name, " must have shape ", shape_text(expected, 2), ", not ", shape_text(actual, 2));
        weights_.push_back(std::move(object));
        return view;
    }
    const float* vector(const OptionalArray& array, const char* name, int64_t count) {
        if (!array) return nullptr;
        const float* data = elements<float>(*array, name, {count});
        return vectors_.emplace_back(data, data + count).data();
    }

    LayerView view_;
    std::vector<nb::object> weights_;
    std::vector<std::vector<float>> vectors_;
};

void layers_over(const WritableArray& x, const nb::sequence& layers, const Rows& rows) {
    const RowsView& view = rows.view();
    std::vector<const LayerView*> views;
    std::vector<nb::object> held;
    for (nb::handle item : layers) {
        const Layer* layer = nullptr;
        if (!nb::try_cast(item, layer) || !layer) fail("layers must hold Layers only");
        const LayerView& v = layer->view();
        if (v.hidden() != (views.empty() ? v : *views[0]).hidden()) fail("all layers must have the same width");
        if (view.rows > 0) {
            if (v.head_dim != view.head_dim || v.kv_heads != view.kv_heads)
                fail("layer ", v.index, " has ", v.kv_heads, " × ", v.head_dim, " keys, the cache ", view.kv_heads,
                     " × ", view.head_dim);
            if (v.index >= view.layers) fail("layer ", v.index, " is outside the cache's ", view.layers, " layers");
        }
        views.push_back(&v);
        held.push_back(nb::borrow(item));
    }
    if (views.empty()) fail("layers must hold at least one Layer");
    float* data = elements<float>(x, "x", {view.rows, views[0]->hidden()});
    const nb::gil_scoped_release release;
    if (view.rows > 0) run_layers(data, views, view);
}

}  // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // module-level caches may hold weights until the process ends

    m.def("isa", [] { return kernels().name; });
    m.def("available_isas", [] {
        const Kernels* levels[MOST_LEVELS];
        std::vector<std::string> names;
        for (int i = 0, count = available_levels(levels); i < count; ++i) names.push_back(levels[i]->name);
        return names;
    });
    m.def(
        "use_isa",
        [](const std::string& name) {
            const nb::gil_scoped_release release;
            const std::lock_guard lock(Pool::instance().mutex);
            if (!use_level(name.c_str())) fail("this machine has no instruction set called ", name);
        },
        "name"_a);
    m.def("threads", [] {
        const nb::gil_scoped_release release;
        return Pool::instance().threads();
    });
    m.def(
        "set_threads",
        [](int64_t count) {
            if (count < 1 || count > 1024) fail("threads must be 1 to 1024, not ", count);
            const nb::gil_scoped_release release;
            Pool::instance().resize(static_cast<int>(count));
        },
        "count"_a);

    nb::class_<Weight>(m, "Weight")
        .def_prop_ro("out_features", [](const Weight& w) { return w.view().out_features; })
        .def_prop_ro("in_features", [](const Weight& w) { return w.view().in_features; })
        .def_prop_ro("dtype", dtype_of)
        .def_prop_ro("nbytes", &Weight::bytes);
    nb::class_<Rows>(m, "Rows").def(nb::init<const Array&, const Array&, const Array&, const Array&, const Array&,
                                             const Array&, const Array&, const nb::sequence&, const nb::sequence&>(),
                                    "cos"_a, "sin"_a, "sequence"_a, "slot"_a, "prefix"_a, "ancestors_start"_a,
                                    "ancestors"_a, "keys"_a, "values"_a);
    nb::class_<Layer>(m, "Layer")
        .def(nb::init<int64_t, int64_t, int64_t, int64_t, float, float, bool, const Array&, nb::object, nb::object,
                      nb::object, nb::object, const Array&, nb::object, nb::object, nb::object, const OptionalArray&,
                      const OptionalArray&, const OptionalArray&, const OptionalArray&, const OptionalArray&,
                      const OptionalArray&, const OptionalArray&, const OptionalArray&, const OptionalArray&>(),
             nb::kw_only(), "index"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "epsilon"_a, "scale"_a, "use_rope"_a,
             "attention_norm"_a, "q"_a, "k"_a, "v"_a, "o"_a, "mlp_norm"_a, "gate"_a, "up"_a, "down"_a,
             "q_bias"_a = nb::none(), "k_bias"_a = nb::none(), "v_bias"_a = nb::none(), "o_bias"_a = nb::none(),
             "gate_bias"_a = nb::none(), "up_bias"_a = nb::none(), "down_bias"_a = nb::none(), "q_norm"_a = nb::none(),
             "k_norm"_a = nb::none());

    m.def("pack", &pack, "data"_a, "source"_a, "out_features"_a, "in_features"_a, "dtype"_a,
          "row_order"_a = nb::none());
    m.def("unpack", &unpack, "data"_a, "source"_a, "rows"_a, "columns"_a);
    m.def("embed", &embed, "weight"_a, "tokens"_a);
    m.def("linear", &linear, "x"_a, "weight"_a, "bias"_a = nb::none());
    m.def("rms_norm", &rms_norm, "x"_a, "weight"_a, "epsilon"_a);
    m.def("rope", &rope, "x"_a, "cos"_a, "sin"_a);
    m.def("swiglu", &swiglu, "gate"_a, "up"_a);
    m.def("attention", &attention, "q"_a, "rows"_a, "layer"_a, "scale"_a);
    m.def("run_layers", &layers_over, "x"_a, "layers"_a, "rows"_a);
    bind_sampling(m);
    bind_probe(m);
}
