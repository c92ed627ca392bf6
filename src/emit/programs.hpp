// What trains. A configuration does not say which model its flags build: the program that reads them does.
#pragma once

#include <string>
#include <string_view>

namespace pipewright::emit {

/// What a program of Megatron-LM's repository does other than train a decoder as pretrain_gpt.py does ("trains BERT, an
/// encoder"); empty for pretrain_gpt.py and for what is not known. With or without its folder; others by parts of their
/// names
/// ("hf2mcore_qwen2.py").
std::string_view other_work(std::string_view program);
/// pretrain_hybrid.py, or pretrain_mamba.py as it was called before 0.18.
bool trains_hybrids(std::string_view program);
/// The program that Megatron's functional tests of this file's folder run (.../test_cases/bert/NAME/model_config.yaml);
/// empty where the folder says nothing.
std::string_view program_of_test(std::string_view path);
/// What a flag that pretrain_gpt.py's parser takes and never reads is for ("vision models"), or empty.
std::string_view other_model_of_flag(std::string_view flag);

}  // namespace pipewright::emit
