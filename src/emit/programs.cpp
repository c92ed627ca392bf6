#include "programs.hpp"

#include <algorithm>
#include <array>

namespace pipewright::emit {

namespace {

struct Row {
  std::string_view name, text;
};
constexpr std::string_view llava = "trains a vision and language model", answers = "answers prompts, it does not train",
                           converts = "converts a checkpoint, it does not train", vision = "trains a vision model",
                           reinforces = "trains by reinforcement learning";
constexpr std::string_view evaluates = "evaluates a model, it does not train one as pretrain_gpt.py does";
// Megatron-LM at core_r0.19.0 and main d98e8a64dd: its root, examples/, tools/.
constexpr std::array programs = {Row{"pretrain_bert.py", "trains BERT, an encoder"},
                                 Row{"pretrain_t5.py", "trains T5, an encoder and a decoder"},
                                 Row{"pretrain_ict.py", "trains a retriever"},
                                 Row{"pretrain_retro.py", "trains RETRO, a decoder with retrieval"},
                                 Row{"pretrain_vlm.py", llava},
                                 Row{"multimodal/train.py", llava},
                                 Row{"mimo/train.py", llava},
                                 Row{"pretrain_mimo.py", llava},
                                 Row{"pretrain_hybrid_flex.py", "trains hybrids of several sizes at once"},
                                 Row{"pretrain_vision_classify.py", vision},
                                 Row{"pretrain_vision_dino.py", vision},
                                 Row{"pretrain_vision_inpaint.py", vision},
                                 Row{"train_rl.py", reinforces},
                                 Row{"nemo llm pretrain", "trains what NeMo's recipe says"},
                                 Row{"gpt_dynamic_inference.py", answers},
                                 Row{"gpt_dynamic_inference_with_coordinator.py", answers},
                                 Row{"gpt_static_inference.py", answers},
                                 Row{"offline_inference.py", answers},
                                 Row{"run_text_generation.py", answers},
                                 Row{"run_mamba_text_generation_server.py", answers},
                                 Row{"run_text_generation_server.py", answers},
                                 Row{"run_dynamic_text_generation_server.py", answers},
                                 Row{"run_mamba_text_generation_server_completions.py", answers},
                                 Row{"generate_samples_gpt.py", answers},
                                 Row{"modelopt/generate.py", answers},
                                 Row{"modelopt/mmlu.py", answers},
                                 Row{"msdp/main.py", answers},
                                 Row{"tasks/main.py", evaluates},
                                 Row{"modelopt/convert_model.py", converts},
                                 Row{"modelopt/export.py", converts},
                                 Row{"modelopt/prune.py", converts},
                                 Row{"modelopt/quantize.py", converts},
                                 Row{"checkpoint/convert.py", converts}};
// What the names of other programs say, of forks and of toolkits around Megatron.
constexpr std::array telling = {Row{"text_generation", answers},
                                Row{"inference", answers},
                                Row{"generate_", answers},
                                Row{"convert", converts},
                                Row{"hf2", converts},
                                Row{"2hf", converts},
                                Row{"hf_to_", converts},
                                Row{"_to_hf", converts},
                                Row{"quantize", converts},
                                Row{"_ptq", converts},
                                Row{"evaluate", evaluates},
                                Row{"llava", llava},
                                Row{"_vlm", llava}};
// TRAINING_SCRIPT_PATH of tests/test_utils/recipes by `model`, the folder below test_cases.
constexpr std::array tests = {Row{"bert", "pretrain_bert.py"},
                              Row{"t5", "pretrain_t5.py"},
                              Row{"multimodal-llava", "pretrain_vlm.py"},
                              Row{"mimo", "mimo/train.py"},
                              Row{"gpt-nemo", "nemo llm pretrain"},
                              Row{"hybrid", "pretrain_hybrid.py"},
                              Row{"nemotron", "pretrain_hybrid.py"},
                              Row{"gpt", "pretrain_gpt.py"},
                              Row{"moe", "pretrain_gpt.py"},
                              Row{"mixtral", "pretrain_gpt.py"}};
// Beginnings of names in the parser's groups that other programs read (arguments.py: _add_vision_args,
// _add_biencoder_args and their like), and what belongs to an encoder.
constexpr std::string_view retrieval = "retrievers", pictures = "vision models",
                           two_stacks = "models of an encoder and a decoder";
constexpr std::array flags_of_others = {
    Row{"--bert-", "BERT"}, Row{"--output-bert-embeddings", "BERT"}, Row{"--encoder-num-layers", two_stacks},
    Row{"--decoder-num-layers", two_stacks}, Row{"--biencoder-", retrieval}, Row{"--block-data-path", retrieval},
    Row{"--embedding-path", retrieval}, Row{"--evidence-data-path", retrieval}, Row{"--ict-", retrieval},
    Row{"--indexer-", retrieval}, Row{"--query-in-block-prob", retrieval}, Row{"--retriever-", retrieval},
    Row{"--titles-data-path", retrieval}, Row{"--use-one-sent-docs", retrieval}, Row{"--classes-fraction", pictures},
    Row{"--dino-", pictures}, Row{"--img-", pictures}, Row{"--num-channels", pictures}, Row{"--num-classes", pictures},
    Row{"--patch-dim", pictures}, Row{"--swin-", pictures}, Row{"--vision-", pictures},
    // Of examples/multimodal and examples/mimo, beside Megatron's own parser.
    Row{"--language-model-type", pictures}, Row{"--model-provider", pictures}, Row{"--dataset-provider", pictures},
    Row{"--freeze-ViT", pictures}, Row{"--freeze-LM", pictures}, Row{"--tokenizer-prompt-format", pictures},
    Row{"--dataloader-seq-length", pictures}, Row{"--total-seq-length", pictures}};

}  // namespace

std::string_view other_work(std::string_view program) {
  const auto row = std::ranges::find_if(programs, [&](const Row& one) {
    if (!program.ends_with(one.name)) return false;
    return program.size() == one.name.size() || program[program.size() - one.name.size() - 1] == '/';
  });
  if (row != programs.end()) return row->text;
  if (program.ends_with(".py")) program.remove_suffix(3);
  const auto name = program.substr(program.find_last_of("/.") + 1);  // of a path or a module
  const auto part =
      std::ranges::find_if(telling, [&](const Row& one) { return name.find(one.name) != std::string_view::npos; });
  return part == telling.end() ? std::string_view() : part->text;
}

bool trains_hybrids(std::string_view program) {
  return program.ends_with("pretrain_mamba.py") || program.ends_with("pretrain_hybrid.py");
}

std::string_view program_of_test(std::string_view path) {
  constexpr std::string_view folder = "test_cases/";
  const auto at = path.rfind(folder);
  if (at == std::string_view::npos) return {};
  path.remove_prefix(at + folder.size());
  const auto row = std::ranges::find(tests, path.substr(0, path.find('/')), &Row::name);
  return row == tests.end() ? std::string_view() : row->text;
}

std::string_view other_model_of_flag(std::string_view flag) {
  const auto row = std::ranges::find_if(flags_of_others, [&](const Row& one) { return flag.starts_with(one.name); });
  return row == flags_of_others.end() ? std::string_view() : row->text;
}

}  // namespace pipewright::emit
