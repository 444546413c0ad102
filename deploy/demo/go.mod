module github.com/sampan-io/sampan/deploy/demo

go 1.27.0
