// A prediction that a user hands back as JSON: every value that `diff` reads, of the kind it is read as.
#include <fmt/format.h>

#include <cmath>

#include "pipewright/diff.hpp"
#include "pipewright/json_schema.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

/// A value, and the key that leads to it.
class Given {
 public:
  Given(const Json& value, const std::string& file, std::string key)
      : value_(&value), file_(&file), key_(std::move(key)) {}

  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }
  Given at(const char* key) const {
    if (!value_->is_object()) refuse("an object");
    const auto found = value_->find(key);
    const std::string name = key_.empty() ? key : key_ + "." + key;
    if (found == value_->end()) throw UsageError({*file_, 0}, name, "missing");
    return {*found, *file_, name};
  }
  template <class Each>
  void each(const Each& body) const {
    if (!value_->is_array()) refuse("a list");
    for (std::size_t i = 0; i < value_->size(); ++i) body(Given((*value_)[i], *file_, fmt::format("{}[{}]", key_, i)));
  }
  void must_hold_something() const {
    if (value_->empty()) refuse("a list that is not empty");
  }
  void number() const {
    if (!value_->is_number() || !(std::abs(value_->get<double>()) < 1e15)) refuse("a number below 1e15");
  }
  void positive() const {
    if (!value_->is_number() || !(*value_ > 0 && *value_ < 1e15)) refuse("a number above 0 and below 1e15");
  }
  void bytes() const {
    constexpr std::int64_t most = std::int64_t{1} << 62;
    if (!value_->is_number_integer() || *value_ < 0 || *value_ > most) refuse("a whole number, 0 to 2^62");
  }
  std::int64_t whole_number() const {
    if (!value_->is_number_integer()) refuse("a whole number");
    return value_->get<std::int64_t>();
  }
  void text() const {
    if (!value_->is_string()) refuse("a text");
  }
  void truth() const {
    if (!value_->is_boolean()) refuse("true or false");
  }
  void numbers() const {
    if (!value_->is_object()) refuse("an object");
    for (const auto& [key, value] : value_->items()) Given(value, *file_, key_ + "." + key).number();
  }
  const Json& value() const { return *value_; }

 private:
  [[noreturn]] void refuse(const std::string& expected) const {
    const std::string found = value_->is_primitive() ? value_->dump() : value_->type_name();
    throw UsageError({*file_, 0}, key_, fmt::format("expected {}, found {}", expected, found.substr(0, 40)));
  }

  const Json* value_;
  const std::string* file_;
  std::string key_;
};

void require_rank(const Given& rank) {
  for (const char* key : {"forward_backward_ms", "busy_ms", "bubble_ms", "idle_ms"}) rank.at(key).number();
  for (const auto& cause : exposed_causes) rank.at("exposed_ms").at(cause.name).number();
  for (const char* key : {"peak_allocated_bytes", "peak_reserved_bytes", "outside_allocator_bytes"})
    rank.at(key).bytes();
  rank.at("peak_at").text();
  rank.at("peak_owners").each([](const Given& owner) {
    owner.at("owner").text();
    owner.at("bytes").bytes();
  });
  for (const char* key : {"busy_ms", "exposed_ms"}) rank.at("as_traced").at(key).numbers();
}

void require_prediction(const Given& prediction) {
  prediction.at("step_time_ms").positive();
  for (const char* key : {"recompute_ms", "tflops_per_gpu", "tokens_per_s_per_gpu"}) prediction.at(key).number();
  prediction.at("fits").truth();
  prediction.at("ranks").each(require_rank);
  prediction.at("ranks").must_hold_something();
}

}  // namespace

std::optional<ReadPrediction> read_prediction(const std::string& json, const std::string& file) {
  const Json whole = Json::parse(json, nullptr, false);
  const Given place(whole, file, "");
  if (place.has("schema") && place.has("tool")) refuse_later_schema(place.at("schema").whole_number(), file);
  if (place.has("step_time_ms") && place.has("ranks")) {
    require_prediction(place);
    return ReadPrediction{whole.dump(), {}};
  }
  if (!place.has("best") || !place.has("searched")) {
    if (place.has("schema") && place.has("tool"))
      throw UsageError({file, 0}, {},
                       "holds no prediction: `simulate --json` and `plan --json` write what is compared");
    return std::nullopt;
  }
  const Given best = place.at("best");
  if (best.value().is_null()) throw UsageError({file, 0}, {}, "this plan has no best: nothing fits");
  require_prediction(best.at("prediction"));
  best.at("scenario").text();
  return ReadPrediction{best.at("prediction").value().dump(), best.at("scenario").value().get<std::string>()};
}

}  // namespace pipewright::report
