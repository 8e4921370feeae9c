#include "regions/catalogue.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "embedded/regions_json.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"

namespace shardfit::regions {

Catalogue Catalogue::shipped() {
  Catalogue c;
  const Json list = Json::parse(embedded::regions_json());
  c.records_.reserve(list.size());
  for (const auto& item : list) {
    c.records_.push_back(parse_record(item, "/" + std::to_string(c.records_.size())));
  }
  return c;
}

Catalogue Catalogue::load(const std::string& regions_dir) {
  Catalogue c = shipped();
  std::error_code ec;
  if (regions_dir.empty() || !std::filesystem::is_directory(regions_dir, ec)) return c;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(regions_dir, ec))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  if (ec) throw Error("file_unreadable", "", "the folder cannot be read: " + ec.message()).in_file(regions_dir);
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    const Json root = read_json_file(file);
    try {
      const Json list = root.is_array() ? root : Json::array({root});
      for (size_t i = 0; i < list.size(); ++i) {
        const std::string where = root.is_array() ? "/" + std::to_string(i) : "";
        ObjectReader head(list[i], where);
        const std::string id = head.required_string("id");
        Record record;
        if (const Record* known = c.find(id)) {
          record = *known;
        } else {
          record = parse_record(Json{{"id", id}}, where);
        }
        apply_override(record, list[i], where);
        c.add(std::move(record));
      }
    } catch (Error& e) {
      throw e.in_file(file.string());
    }
  }
  return c;
}

const Record* Catalogue::find(std::string_view id) const {
  for (const auto& r : records_)
    if (r.id == id) return &r;
  const std::string low = to_lower(id);
  for (const auto& r : records_)
    if (r.id.size() == id.size() && to_lower(r.id) == low) return &r;
  return nullptr;
}

const Record* Catalogue::find(std::string_view provider, std::string_view provider_region) const {
  const std::string slug = provider_slug(provider), region = to_lower(trim(provider_region));
  for (const auto& r : records_)
    if (r.provider == slug && to_lower(r.provider_region) == region) return &r;
  return find(slug + "/" + std::string(provider_region));
}

const Record& Catalogue::at(std::string_view id, const std::string& where) const {
  if (const Record* r = find(id)) return *r;
  std::vector<std::string> ids;
  for (const auto& r : records_) ids.push_back(r.id);
  const auto near = nearest(id, ids);
  throw Error("unknown_region", where, "region \"" + std::string(id) + "\" is not known",
              near ? "did you mean \"" + *near + "\"?" : "shardfit regions list shows them; regions.d/*.json adds one");
}

void Catalogue::add(Record record) {
  for (auto& r : records_)
    if (r.id == record.id) {
      r = std::move(record);
      return;
    }
  records_.push_back(std::move(record));
}

std::string provider_slug(std::string_view provider) {
  const std::string name = to_lower(trim(provider));
  static const std::pair<const char*, const char*> known[] = {
      {"oracle oci", "oci"},       {"oracle", "oci"},           {"oracle cloud", "oci"}, {"vast.ai", "vast"},
      {"runpod secure", "runpod"}, {"latitude.sh", "latitude"}, {"datacrunch", "verda"}, {"ovh", "ovhcloud"},
      {"amazon", "aws"},           {"google cloud", "gcp"},     {"google", "gcp"},       {"lambdalabs", "lambda"}};
  for (const auto& [from, to] : known)
    if (name == from) return to;
  std::string slug;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) slug += c;
    else if (!slug.empty() && slug.back() != '-') slug += '-';
  }
  while (!slug.empty() && slug.back() == '-') slug.pop_back();
  return slug;
}

}  // namespace shardfit::regions
