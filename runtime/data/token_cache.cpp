#include "runtime/data/token_cache.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "regions/base/error.hpp"
#include "runtime/checkpoint/xxh64.hpp"
#include "runtime/data/cache_lock.hpp"
#include "runtime/data/content_hash.hpp"
#include "runtime/data/documents.hpp"
#include "runtime/data/token_files.hpp"

namespace shardfit::data {
namespace {

constexpr std::size_t kBatchBytes = std::size_t{8} << 20;  // documents tokenized at once, by all threads
constexpr std::size_t kBatchDocuments = 8192;

std::size_t threads_for(std::size_t bytes) {
  if (bytes < 256 << 10) return 1;
  cpu_set_t set;
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return static_cast<std::size_t>(std::clamp(cores, 1, 16));
}

// Tokenizes a batch in parallel; of several errors the one of the earliest document is thrown.
std::vector<Document> tokenize_all(const Source& source, const std::vector<RawDocument>& batch, std::size_t bytes) {
  std::vector<Document> documents(batch.size());
  std::vector<std::exception_ptr> errors(batch.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < batch.size(); i = next++) {
      try {
        documents[i] = tokenize(source, batch[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < threads_for(bytes); ++i) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return documents;
}

// Puts documents one after another, with the end-of-text token between them where they are packed.
class Packer {
 public:
  Packer(const Source& source, StoreWriter& writer) : source_(source), writer_(writer) {}

  void add(const RawDocument& raw, const Document& document) {
    if (raw.first) begun_ = false;
    if (!source_.packing) {
      if (!begun_) writer_.begin_document();
      begun_ = true;
    } else if (!document.ids.empty() && !begun_) {
      begin(raw.file, raw.where);
      begun_ = true;
    }
    if (document.ids.empty()) return;
    writer_.append(document.ids, document.labels);
    last_ = document.ids.back();
    labelled_ = !document.labels.empty();
  }

  // A document of a token file: the separator is put only where the file before it did not end with one.
  void begin_file(const TokenFile& file) {
    if (source_.packing && file.tokens > 0) separate(file.path.string(), "", file.end_of_text);
  }
  void end_file(bool ended) { last_ = ended ? kEnded : kOther; }

 private:
  static constexpr std::int32_t kNothing = -1, kEnded = -2, kOther = -3;

  void begin(const std::string& file, const std::string& where) {
    separate(file, where, source_.end_of_text);
    writer_.begin_document();
  }
  void separate(const std::string& file, const std::string& where, std::optional<std::int32_t> end_of_text) {
    if (last_ == kNothing || last_ == kEnded || (end_of_text && last_ == *end_of_text)) return;
    if (!end_of_text)
      throw Error(
          "missing_key", where,
          "is a second document, and packing puts the end-of-text token before it, which the model does not name",
          "state eos_token_id in config.json or eos_token in tokenizer_config.json, or set data.packing to false")
          .in_file(file);
    const std::vector<std::int32_t> separator{*end_of_text}, labels(labelled_ ? 1 : 0, kNotSupervised);
    writer_.append(separator, labels);
  }

  const Source& source_;
  StoreWriter& writer_;
  std::int32_t last_ = kNothing;
  bool labelled_ = false, begun_ = false;
};

void store_documents(const Source& source, const std::vector<std::filesystem::path>& files, StoreWriter& writer,
                     std::vector<std::string>& warnings, const std::function<void()>& alive) {
  Packer packer(source, writer);
  std::int64_t repaired = 0;
  std::string first_repaired;
  std::vector<RawDocument> batch;
  std::size_t bytes = 0;
  const auto flush = [&] {
    const auto documents = tokenize_all(source, batch, bytes);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      packer.add(batch[i], documents[i]);
      if (documents[i].repaired && ++repaired == 1) first_repaired = batch[i].file;
    }
    batch.clear();
    bytes = 0;
    alive();
  };
  for (const auto& file : files)
    read_documents(source, file, [&](RawDocument&& raw) {
      bytes += raw.text.size() + raw.completion.size() + raw.ids.size() * 4 + raw.labels.size() * 4;
      batch.push_back(std::move(raw));
      if (bytes >= kBatchBytes || batch.size() >= kBatchDocuments) flush();
    });
  flush();
  if (repaired > 0)
    warnings.push_back(
        fmt::format("{} of the texts hold bytes that are not UTF-8, the first in {}; each such byte is taken as U+FFFD",
                    repaired, first_repaired));
}

void store_token_files(const Source& source, const std::vector<std::filesystem::path>& files, StoreWriter& writer,
                       const std::function<void()>& alive) {
  Packer packer(source, writer);
  for (const auto& path : files) {
    const TokenFile file = describe_token_file(source, path);
    if (file.tokens == 0) continue;
    packer.begin_file(file);
    const std::int64_t first = writer.tokens();
    const bool ended = scan_token_file(
        source, file, [&](std::int64_t at) { writer.begin_document_at(first + at); }, alive);
    writer.append_segment({file.path.string(), 0, file.width, file.tokens});
    packer.end_file(ended);
  }
}

int build(const Source& source, const std::vector<std::filesystem::path>& files, const std::filesystem::path& part,
          const std::filesystem::path& target, StoreDescription description, const std::function<void()>& alive) {
  std::int64_t vocabulary = source.vocabulary;
  if (vocabulary == 0 && source.format == "text" && source.tokenizer != nullptr)
    vocabulary = source.tokenizer->vocabulary_size();
  if (source.end_of_text)
    vocabulary = std::max<std::int64_t>(vocabulary, vocabulary == 0 ? 0 : *source.end_of_text + 1);
  StoreWriter writer(part, vocabulary > 0 && vocabulary <= 65536 ? 2 : 4);
  if (source.format == "tokens") store_token_files(source, files, writer, alive);
  else store_documents(source, files, writer, description.warnings, alive);
  if (writer.tokens() == 0)
    throw Error("data_empty", "", "holds no tokens: every document is empty", "name files with text in them")
        .in_file(files.front().string());
  return writer.finish(target, std::move(description));
}

std::string key_of(const Source& source, const std::string& content, const std::vector<std::filesystem::path>& files) {
  std::string how = fmt::format("2 {} {} {} {} {} {}\n", content, source.format, source.text_key, source.packing,
                                source.end_of_text.value_or(-1), source.vocabulary);
  if (source.format == "tokens")  // the cache names these files rather than copying them
    for (const auto& file : files) how += std::filesystem::absolute(file).string() + "\n";
  checkpoint::Xxh64 hash;
  hash.update(std::as_bytes(std::span(how)));
  return hash.hex();
}

}  // namespace

std::unique_ptr<TokenStore> open_token_cache(const Source& source, double wait_seconds) {
  const auto files = files_of(source);
  std::vector<std::filesystem::path> hashed = files;
  if (source.format == "tokens")
    for (const auto& file : files) hashed.push_back(describe_token_file(source, file).description);
  else if (source.tokenizer != nullptr) hashed.emplace_back(source.tokenizer->file());

  if (source.cache_folder.empty()) {
    StoreDescription description;
    description.content_hash = content_hash(hashed, "", [] {});
    const std::filesystem::path part =
        std::filesystem::temp_directory_path() /
        fmt::format("shardfit-tokens-{}-{}", ::getpid(), static_cast<const void*>(&source));
    return std::make_unique<TokenStore>(build(source, files, part, "", std::move(description), [] {}));
  }

  const CacheLock lock(source.cache_folder, wait_seconds);
  const auto alive = [&lock] { lock.alive(); };
  StoreDescription description;
  description.content_hash = content_hash(hashed, source.cache_folder / "files.json", alive);
  description.key = key_of(source, description.content_hash, files);
  const std::filesystem::path target = source.cache_folder / ("tokens-" + description.key + ".bin");
  if (std::filesystem::exists(target)) {
    try {
      return std::make_unique<TokenStore>(target);
    } catch (const Error& error) {
      if (error.code != "cache_damaged") throw;
      std::filesystem::remove(target);
    }
  }
  build(source, files, target.string() + ".part", target, std::move(description), alive);
  return std::make_unique<TokenStore>(target);
}

}  // namespace shardfit::data
