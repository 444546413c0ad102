module github.com/sampan-io/sampan/deploy/probe

go 1.27.0
