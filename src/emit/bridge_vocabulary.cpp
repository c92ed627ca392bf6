#include "bridge_vocabulary.hpp"

#include <fmt/format.h>

#include "pipewright/scenario/derived.hpp"

namespace pipewright::emit {

bool BridgeVocabulary::takes(const std::string& section, const std::string& field, const Python& value,
                             const Position& where) {
  if (section == "model" && field == "should_pad_vocab") {
    pads_ = value.text == "True";
  } else if (section == "tokenizer" && field == "vocab_size") {
    if (value.kind != Python::Kind::none) of_tokenizer_ = integer_of(value, where, "cfg.tokenizer.vocab_size");
  } else if (section == "tokenizer" && field == "use_tokenizer_vocab_size") {
    tokenizer_decides_ = value.text == "True";
  } else {
    return false;
  }
  return true;
}

void BridgeVocabulary::settle(scenario::Scenario& s, bool resolved, const Position& file) const {
  auto& vocabulary = s.model.vocab_size;
  const bool from_tokenizer = of_tokenizer_ > 0 && (vocabulary == 0 || tokenizer_decides_);
  if (from_tokenizer) vocabulary = of_tokenizer_;
  if (vocabulary == 0)
    throw UsageError(file, "cfg.model.vocab_size",
                     "the vocabulary is missing: add cfg.model.vocab_size = N, or --set vocab_size=N");
  // Larger than the tokenizer's: written before setup(), of a stated one.
  const bool before_setup = of_tokenizer_ > 0 && vocabulary > of_tokenizer_ + 1;
  if (from_tokenizer || tokenizer_decides_ || (resolved && pads_ && !before_setup)) return;
  const auto tp = s.settings.tensor_model_parallel_size;
  if (tp > 0 && vocabulary % tp != 0)
    throw UsageError(
        file, "cfg.model.vocab_size",
        fmt::format(
            "{} is not divisible by tensor_model_parallel_size {}, and Bridge pads no vocabulary that is stated",
            vocabulary, tp));
  if (scenario::padded_vocab_size(s) != vocabulary) s.model.make_vocab_size_divisible_by = 1;
}

}  // namespace pipewright::emit
