module github.com/fencepost/fencepost/clients/go

go 1.21
