module github.com/fencepost/fencepost/clients/go/examples

go 1.21

require (
	github.com/fencepost/fencepost/clients/go v0.0.0
	github.com/lib/pq v1.10.9
)

replace github.com/fencepost/fencepost/clients/go => ../
