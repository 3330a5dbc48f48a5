// Marks what the shared library exports. Everything else stays hidden.
#pragma once

#define GRADPRESS_API [[gnu::visibility("default")]]
