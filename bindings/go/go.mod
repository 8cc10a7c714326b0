module github.com/cowhand/cowhand/bindings/go

go 1.19
