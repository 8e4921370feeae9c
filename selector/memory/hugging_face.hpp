// What the modeling files of Hugging Face transformers do differently from Llama's, family by family.
#pragma once

namespace shardfit::memory {

struct Setup;

void set_hugging_face(Setup& s);

}  // namespace shardfit::memory
