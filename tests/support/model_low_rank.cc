// powersgd and acpsgd on a matrix. With Π(F) the orthogonal projection onto the columns of F and
// X_i = M_i + E_i:
//   acpsgd, even steps of the state:  P_i = X_i Q,    applied = mean X_i Π(Q),   E_i = X_i − X_i
//   Π(Q)
//           odd steps:                Q_i = X_iᵀ P,   applied = mean Π(P) X_i,   E_i = X_i − Π(P)
//           X_i where Q, P are the last sums over the workers, the first Q random;
//   powersgd: P = Σ X_i Q, applied = mean Π(P) X_i, E_i = X_i − applied, next Q = Σ X_iᵀ orth(P).
// acpsgd's error is against what the worker sent, powersgd's against what all applied; the sums
// over the workers are equal. Projections do not depend on the basis, so neither do the results.
#include <algorithm>
#include <cmath>

#include "support/model.h"

namespace gradpress::test {

namespace {

struct Matrix {
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::vector<double> values;  // row after row

  Matrix(std::size_t r, std::size_t c) : rows(r), cols(c), values(r * c, 0.0) {}
  double& at(std::size_t i, std::size_t j) { return values[i * cols + j]; }
  double at(std::size_t i, std::size_t j) const { return values[i * cols + j]; }
};

Matrix transposed(const Matrix& a) {
  Matrix out(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < a.cols; ++j) out.at(j, i) = a.at(i, j);
  }
  return out;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t l = 0; l < a.cols; ++l) {
      for (std::size_t j = 0; j < b.cols; ++j) out.at(i, j) += a.at(i, l) * b.at(l, j);
    }
  }
  return out;
}

/// Gram-Schmidt, each column twice: orthonormal to double precision unless the columns depend.
Matrix orthonormal(Matrix f) {
  for (std::size_t j = 0; j < f.cols; ++j) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t k = 0; k < j; ++k) {
        double dot = 0.0;
        for (std::size_t i = 0; i < f.rows; ++i) dot += f.at(i, k) * f.at(i, j);
        for (std::size_t i = 0; i < f.rows; ++i) f.at(i, j) -= dot * f.at(i, k);
      }
      double squares = 0.0;
      for (std::size_t i = 0; i < f.rows; ++i) squares += f.at(i, j) * f.at(i, j);
      for (std::size_t i = 0; i < f.rows; ++i) f.at(i, j) /= std::max(std::sqrt(squares), 1e-300);
    }
  }
  return f;
}

class LowRankModel final : public Model {
 public:
  explicit LowRankModel(const ModelOptions& options)
      : Model(options),
        rows_(options.shape.rows()),
        cols_(options.shape.cols()),
        factor_(cols_, codec::effective_rank(options.spec, options.shape)) {
    const Words words({.seed = options.seed,
                       .tensor = options.tensor,
                       .step = 0,
                       .site = options.site,
                       .shard = 0});
    for (std::size_t j = 0; j < factor_.cols; ++j) {
      for (std::size_t i = 0; i < cols_; ++i) {
        double sum = -6.0;
        for (std::size_t t = 0; t < 12; ++t) sum += words.uniform(12 * (j * cols_ + i) + t);
        factor_.at(i, j) = static_cast<float>(sum);
      }
    }
  }

  Expected step(const std::vector<std::vector<float>>& grads, std::uint64_t /*step*/,
                const std::vector<Payloads>& sent) override {
    std::vector<Matrix> x;
    double largest = 0.0;
    for (std::uint32_t w = 0; w < options_.workers; ++w) {
      x.emplace_back(rows_, cols_);
      for (std::size_t i = 0; i < x[w].values.size(); ++i) {
        x[w].values[i] = grads[w][i] + (options_.feedback ? residuals[w][i] : 0.0);
        largest = std::max(largest, std::fabs(x[w].values[i]));
      }
    }
    largest_ = std::max(largest, largest_);
    const bool alternating = options_.spec.kind == codec::Kind::kAcpSgd;
    const bool right = alternating && encodes_ % 2 == 0;
    Matrix basis = orthonormal(factor_);
    if (!alternating) basis = orthonormal(sum(x, factor_, /*transpose=*/false));
    Expected expected{.values = std::vector<double>(rows_ * cols_, 0.0),
                      .tolerance = std::vector<double>(rows_ * cols_, tolerance())};
    for (std::uint32_t w = 0; w < options_.workers; ++w) {
      check_factor(w, right ? product(x[w], basis) : product(transposed(x[w]), basis), sent[w]);
      const Matrix carried = right ? product(product(x[w], basis), transposed(basis))
                                   : product(basis, product(transposed(basis), x[w]));
      for (std::size_t i = 0; i < carried.values.size(); ++i) {
        expected.values[i] += carried.values[i] / options_.workers;
        if (options_.feedback) residuals[w][i] = x[w].values[i] - carried.values[i];
        noise[w][i] = options_.feedback ? tolerance() : 0.0;
      }
    }
    for (std::uint32_t w = 0; !alternating && options_.feedback && w < options_.workers; ++w) {
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        residuals[w][i] = x[w].values[i] - expected.values[i];
      }
    }
    factor_ = sum(x, basis, /*transpose=*/!right);
    ++encodes_;
    return expected;
  }

 private:
  /// Single precision loses some digits in every product and in every orthogonalisation; the loss
  /// grows with the steps, for each starts from the last one's factor.
  double tolerance() const { return 1e-4 * double(encodes_ + 1) * largest_; }

  /// Holds what a worker sent against its factor. The basis is the codec's choice, so F Fᵀ is
  /// compared, which is the same for each.
  void check_factor(std::uint32_t worker, const Matrix& factor, const Payloads& sent) {
    if (sent.size() != 1 || sent[0].size() != 4 * factor.values.size()) {
      complain("worker " + std::to_string(worker) + " sent no factor of " +
               std::to_string(factor.values.size()) + " floats");
      return;
    }
    Matrix got(factor.rows, factor.cols);
    for (std::size_t j = 0; j < got.cols; ++j) {
      for (std::size_t i = 0; i < got.rows; ++i) {
        got.at(i, j) = read_f32(sent[0], 4 * (j * got.rows + i));
      }
    }
    double largest = 0.0;
    for (const double v : factor.values) largest = std::max(largest, std::fabs(v));
    const double grace = 1e-3 * double(encodes_ + 1) * largest * largest + 1e-36;
    // Some hundred rows tell the layout from any other.
    const std::size_t stride = 1 + factor.rows / 200;
    for (std::size_t a = 0; a < factor.rows; a += stride) {
      for (std::size_t b = 0; b < factor.rows; b += stride) {
        double wanted = 0.0;
        double met = 0.0;
        for (std::size_t j = 0; j < factor.cols; ++j) {
          wanted += factor.at(a, j) * factor.at(b, j);
          met += got.at(a, j) * got.at(b, j);
        }
        if (std::fabs(wanted - met) <= grace) continue;
        complain("worker " + std::to_string(worker) + ": rows " + std::to_string(a) + " and " +
                 std::to_string(b) + " of its factor multiply to " + std::to_string(met) +
                 ", wanted " + std::to_string(wanted));
        return;
      }
    }
  }

  /// Σ X_i F, or Σ X_iᵀ F.
  Matrix sum(const std::vector<Matrix>& x, const Matrix& f, bool transpose) const {
    Matrix out(transpose ? cols_ : rows_, f.cols);
    for (const Matrix& one : x) {
      const Matrix part = transpose ? product(transposed(one), f) : product(one, f);
      for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] += part.values[i];
    }
    return out;
  }

  std::size_t rows_;
  std::size_t cols_;
  Matrix factor_;  // acpsgd: what the next step projects onto; powersgd: Q
  std::uint64_t encodes_ = 0;
  double largest_ = 0.0;
};

}  // namespace

std::unique_ptr<Model> make_low_rank_model(const ModelOptions& options) {
  return std::make_unique<LowRankModel>(options);
}

}  // namespace gradpress::test
