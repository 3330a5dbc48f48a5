// A plug-in of clang-tidy 14: its checks look at declarations outside system headers alone.
//
// clang-tidy matches every check against every declaration that a source includes, and then throws
// away what it found in system headers. Those are nearly all of what a source includes, so that
// most of the time goes where nothing can be found. This is a check that matches the translation
// unit, which is visited before all else in it, and narrows the traversal to the declarations that
// stand in our files. (clangd narrows it in the same way, to the file being edited.)
#include <clang-tidy/ClangTidyCheck.h>
#include <clang-tidy/ClangTidyModule.h>
#include <clang-tidy/ClangTidyModuleRegistry.h>
#include <clang/AST/ASTContext.h>
#include <clang/ASTMatchers/ASTMatchFinder.h>
#include <clang/Basic/SourceManager.h>

#include <vector>

namespace {

using clang::ast_matchers::MatchFinder;

class OwnCodeScope : public clang::tidy::ClangTidyCheck {
 public:
  using ClangTidyCheck::ClangTidyCheck;

  void registerMatchers(MatchFinder* finder) override {
    finder->addMatcher(clang::ast_matchers::translationUnitDecl().bind("unit"), this);
  }

  void check(const MatchFinder::MatchResult& result) override {
    const auto* unit = result.Nodes.getNodeAs<clang::TranslationUnitDecl>("unit");
    std::vector<clang::Decl*> ours;
    for (clang::Decl* declaration : unit->decls()) {
      const clang::SourceLocation place =
          result.SourceManager->getExpansionLoc(declaration->getLocation());
      if (place.isValid() && !result.SourceManager->isInSystemHeader(place)) {
        ours.push_back(declaration);
      }
    }
    result.Context->setTraversalScope(ours);
  }
};

class OwnCodeModule : public clang::tidy::ClangTidyModule {
 public:
  void addCheckFactories(clang::tidy::ClangTidyCheckFactories& factories) override {
    factories.registerCheck<OwnCodeScope>("gradpress-own-code-scope");
  }
};

const clang::tidy::ClangTidyModuleRegistry::Add<OwnCodeModule> kRegistered(
    "gradpress-module", "Narrows what the checks look at to our own code.");

}  // namespace
