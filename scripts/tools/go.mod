module github.com/sampan-io/sampan/scripts/tools

go 1.27.0

