from x import y
cfg.model.num_layers = 32
cfg.model.hidden_size = 4096
cfg.model.num_attention_heads = 32
cfg.model.seq_length = 4096
cfg.dataset.seq_length = 4096
cfg.model.vocab_size = 128256  # padded
cfg.model.num_moe_experts = 8
cfg.model.moe_layer_freq = [0]*3 + [1]*29
cfg.model.recompute_granularity = 'selective'
cfg.model.recompute_modules = [
    "mlp",
    "core_attn",
]
cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
cfg.comm_overlap.delay_wgrad_compute = True
cfg.mixed_precision = get_mixed_precision_config("bf16_mixed")
cfg.env_vars["A"] = "x\"y"
cfg.train.micro_batch_size = 1; cfg.train.global_batch_size = 16
