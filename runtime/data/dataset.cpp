#include "runtime/data/dataset.hpp"

#include <algorithm>

#include "regions/base/error.hpp"
#include "runtime/data/token_cache.hpp"

namespace shardfit::data {

Source source_of(const job::Job& job, bool eval, const std::filesystem::path& output_folder, std::int64_t vocabulary,
                 const tokenizer::Tokenizer* tokenizer, std::optional<std::int32_t> end_of_text) {
  const auto missing = [&](const char* key) {
    return Error("missing_key", key, "is missing: there is nothing to read", "name a file, a folder or a list of them")
        .in_file(job.file);
  };
  if (!job.data) throw missing("/data");
  const auto& names = eval ? job.data->eval : job.data->train;
  if (names.empty()) throw missing(eval ? "/data/eval" : "/data/train");
  Source source;
  for (const std::string& name : names) source.files.push_back(job.resolve(name));
  source.format = job.data->format;
  source.text_key = job.data->text_key;
  source.packing = job.data->packing;
  source.sequence_length = job.sequence_length;
  source.vocabulary = vocabulary;
  source.tokenizer = tokenizer;
  source.end_of_text = end_of_text;
  source.cache_folder = output_folder / "cache";
  return source;
}

struct Dataset::Parts {
  std::unique_ptr<TokenStore> store;
  bool packing = true;
  std::int64_t length = 0;  // sequence_length
  std::int32_t padding_id = 0;
};

Dataset::Dataset(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

Dataset Dataset::open(const Source& source, double wait_seconds) {
  if (source.sequence_length < 1 || source.sequence_length > (1 << 30))
    throw Error("out_of_range", "/sequence_length",
                "is " + std::to_string(source.sequence_length) + ", must be 1 or more");
  auto parts = std::make_unique<Parts>();
  parts->store = open_token_cache(source, wait_seconds);
  parts->packing = source.packing;
  parts->length = source.sequence_length;
  parts->padding_id = source.padding_id;
  return Dataset(std::move(parts));
}

std::int64_t Dataset::documents() const { return parts_->store->description().documents; }
std::int64_t Dataset::tokens() const { return parts_->store->description().tokens; }
std::int64_t Dataset::rows() const {
  return parts_->packing ? (tokens() + parts_->length - 1) / parts_->length : documents();
}
const std::string& Dataset::content_hash() const { return parts_->store->description().content_hash; }
const std::vector<std::string>& Dataset::warnings() const { return parts_->store->description().warnings; }

Row Dataset::row(std::int64_t number) const {
  if (number < 0 || number >= rows())
    throw Error("out_of_range", "",
                "row " + std::to_string(number) + " of " + std::to_string(rows()) + " was asked for", "", kExitFailed);
  const TokenStore& store = *parts_->store;
  const std::int64_t begin = parts_->packing ? number * parts_->length : store.document_start(number);
  const std::int64_t end = std::min(begin + parts_->length, parts_->packing ? tokens() : store.document_end(number));
  const auto size = static_cast<std::size_t>(parts_->length), length = static_cast<std::size_t>(end - begin);
  Row row;
  row.number = number;
  row.length = end - begin;
  row.ids.assign(size, parts_->padding_id);
  row.labels.assign(size, kNotSupervised);
  row.positions.assign(size, 0);
  if (length == 0) return row;
  const auto ids = std::span(row.ids).first(length);
  store.read_tokens(begin, ids);
  store.read_labels(begin, std::span(row.labels).first(length), ids);
  row.document_starts.push_back(0);
  if (parts_->packing)
    for (std::int64_t d = store.document_after(begin); d < documents() && store.document_start(d) < end; ++d)
      row.document_starts.push_back(static_cast<std::int32_t>(store.document_start(d) - begin));
  for (std::size_t d = 0; d < row.document_starts.size(); ++d) {
    const auto from = static_cast<std::size_t>(row.document_starts[d]);
    const std::size_t to =
        d + 1 < row.document_starts.size() ? static_cast<std::size_t>(row.document_starts[d + 1]) : length;
    for (std::size_t i = from; i < to; ++i) row.positions[i] = static_cast<std::int32_t>(i - from);
  }
  row.supervised = std::count_if(row.labels.begin() + 1, row.labels.begin() + static_cast<std::ptrdiff_t>(length),
                                 [](std::int32_t label) { return label != kNotSupervised; });
  return row;
}

}  // namespace shardfit::data
